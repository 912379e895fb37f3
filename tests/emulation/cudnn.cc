/* cudnn.cc - cuDNN's backend API on the CPU, for tests: builds the graphs it is given as strictly
   as it can, and runs them one operation after the other, as documented, on the emulated CUDA's
   streams. What a graph computes is thus seen without a GPU; that cuDNN takes it is
   test_cudnn.sh's.

   BUILD: see cuda_runtime.h; the toolkit's cudnn.h is included as it is.
     g++ $(FLAGS) -isystem $(CUDNN)/include -c tests/emulation/cudnn.cc

   Numbers. All is computed in f32 and rounded to a tensor's type where it is stored, inside the
   graph too. A product rounds both operands to the 16-bit type that one of them has, as tensor
   cores do. Tensors inside the graph begin as NaN.

   Engines. Every graph is offered three: one whose plan cannot be made, one that says it is not
   deterministic, one that is fine. The last one's workspace for backward is that of the real
   cuDNN on Hopper: a matrix of 16-bit scores for each head. cudnn_emulation.h tells which ran, and
   makes calls fail. */
#include "engine.h"

#include <cudnn.h>

#include <cstdio>
#include <cstring>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cudnn_emulation.h"

namespace {

thread_local std::string last_error;
cudnn_emulation state;

struct failure : std::runtime_error {
    cudnnStatus_t status;
    failure(cudnnStatus_t s, const std::string &why) : std::runtime_error(why), status(s) {}
};
void demand(bool ok, const std::string &why) {
    if (!ok) throw failure(CUDNN_STATUS_BAD_PARAM, why);
}

/* Every call of the API: counts it, makes the chosen one fail, turns exceptions into a status. */
template <class F> cudnnStatus_t guarded(const char *name, F body) {
    try {
        if (++state.calls == state.fail_call)
            throw failure(CUDNN_STATUS_INTERNAL_ERROR, std::string("told to fail in ") + name);
        body();
        return CUDNN_STATUS_SUCCESS;
    } catch (const failure &f) {
        last_error = f.what();
        return f.status;
    }
}

/* ---- descriptors --------------------------------------------------------------------------- */

struct attribute {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
};
struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finished = false;
    std::map<int, attribute> attributes;
    int engine = -1; /* of engines, configurations and plans */
    descriptor *graph = nullptr;
};

descriptor *of(cudnnBackendDescriptor_t d) {
    demand(d != nullptr, "a descriptor is NULL");
    return (descriptor *)d;
}

size_t bytes_of(cudnnBackendAttributeType_t type) {
    switch ((int)type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64: return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NUMERICAL_NOTE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE: return sizeof(int);
    default: demand(false, "an attribute type that is not emulated"); return 0;
    }
}

template <class T>
std::vector<T> list(const descriptor *d, int name, cudnnBackendAttributeType_t type) {
    const auto found = d->attributes.find(name);
    demand(found != d->attributes.end(), "attribute " + std::to_string(name) + " is missing");
    demand(found->second.type == type, "attribute " + std::to_string(name) + " has another type");
    std::vector<T> values((size_t)found->second.count);
    memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
}
template <class T> T one(const descriptor *d, int name, cudnnBackendAttributeType_t type) {
    const std::vector<T> values = list<T>(d, name, type);
    demand(values.size() == 1, "attribute " + std::to_string(name) + " is not one value");
    return values[0];
}
descriptor *child(const descriptor *d, int name, cudnnBackendDescriptorType_t type) {
    descriptor *c = one<descriptor *>(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR);
    demand(c && c->finished && c->type == type,
           "attribute " + std::to_string(name) + " is not a finished descriptor of its type");
    return c;
}
descriptor *optional(const descriptor *d, int name, cudnnBackendDescriptorType_t type) {
    return d->attributes.count(name) ? child(d, name, type) : nullptr;
}

/* ---- tensors ------------------------------------------------------------------------------- */

struct tensor {
    int64_t id, dims[4], strides[4];
    cudnnDataType_t type;
    bool inside, by_value;
    int64_t span() const {
        int64_t n = 1;
        for (int i = 0; i < 4; i++) n += (dims[i] - 1) * strides[i];
        return n;
    }
};

tensor tensor_of(const descriptor *d) {
    tensor t;
    const auto dims = list<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64);
    const auto strides = list<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64);
    demand(dims.size() == 4 && strides.size() == 4, "a tensor has 4 dimensions here");
    for (int i = 0; i < 4; i++) {
        t.dims[i] = dims[(size_t)i], t.strides[i] = strides[(size_t)i];
        demand(t.dims[i] > 0 && t.strides[i] > 0, "dimensions and strides are positive");
    }
    t.id = one<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64);
    t.type = one<cudnnDataType_t>(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE);
    t.inside = one<unsigned char>(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN);
    t.by_value = one<unsigned char>(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN);
    const int64_t align = one<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64);
    demand(align == 16, "tensors are aligned to 16 bytes");
    demand(!(t.inside && t.by_value), "a number of the host is not inside the graph");
    return t;
}
tensor operand(const descriptor *o, int name) {
    return tensor_of(child(o, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
}

float rounded(float x, cudnnDataType_t type) {
    uint32_t b;
    memcpy(&b, &x, 4);
    if (type == CUDNN_DATA_BFLOAT16 && x == x) {
        b = (b + 0x7FFFu + (b >> 16 & 1u)) & 0xFFFF0000u;
        memcpy(&x, &b, 4);
    }
    if (type == CUDNN_DATA_HALF && x == x && !std::isinf(x)) {
        /* to a multiple of the last place: 2^-24 at least, 11 bits at most */
        int exponent;
        (void)frexpf(x, &exponent);
        const float unit = ldexpf(1, exponent - 11 > -24 ? exponent - 11 : -24);
        x = nearbyintf(x / unit) * unit;
        if (fabsf(x) >= 65520) x = copysignf(INFINITY, x);
    }
    return x;
}
float from_half(uint16_t h) {
    const int e = h >> 10 & 31, m = h & 1023;
    const float x = e == 31 ? (m ? NAN : INFINITY)
                    : e     ? ldexpf((float)(m | 1024), e - 25)
                            : ldexpf((float)m, -24);
    return h & 0x8000 ? -x : x;
}
uint16_t to_half(float x) { /* of a number that is rounded already */
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7E00;
    if (std::isinf(x)) return sign | 0x7C00;
    int e;
    const float m = frexpf(fabsf(x), &e);
    if (m == 0) return sign;
    if (e < -13) return (uint16_t)(sign | (int)ldexpf(fabsf(x), 24));
    return (uint16_t)(sign | ((e + 14) << 10) | ((int)ldexpf(m, 11) - 1024));
}

/* Where a tensor's elements are: the caller's memory, or, inside the graph, f32 numbers. */
struct place {
    tensor t;
    void *memory = nullptr;
    std::shared_ptr<std::vector<float>> own;

    float at(int64_t i) const {
        if (own) return (*own)[(size_t)i];
        if (t.type == CUDNN_DATA_FLOAT) return ((const float *)memory)[i];
        const uint16_t h = ((const uint16_t *)memory)[i];
        if (t.type == CUDNN_DATA_HALF) return from_half(h);
        const uint32_t b = (uint32_t)h << 16;
        float x;
        memcpy(&x, &b, 4);
        return x;
    }
    void put(int64_t i, float x) const {
        x = rounded(x, t.type);
        if (own) {
            (*own)[(size_t)i] = x;
        } else if (t.type == CUDNN_DATA_FLOAT) {
            ((float *)memory)[i] = x;
        } else {
            uint32_t b;
            memcpy(&b, &x, 4);
            ((uint16_t *)memory)[i] = t.type == CUDNN_DATA_HALF ? to_half(x) : (uint16_t)(b >> 16);
        }
    }
    /* The element at an index of a larger tensor: dimensions of 1 are repeated. */
    int64_t offset(const int64_t *index) const {
        int64_t o = 0;
        for (int i = 0; i < 4; i++) o += t.dims[i] == 1 ? 0 : index[i] * t.strides[i];
        return o;
    }
};

/* ---- operations ---------------------------------------------------------------------------- */

struct operation {
    cudnnBackendDescriptorType_t kind;
    int mode = 0; /* of pointwise and reduction */
    int64_t axis = 0;
    std::vector<tensor> inputs; /* x or a, then b, then the choice */
    tensor output;
};

void same_or_one(const tensor &x, const tensor &y) {
    for (int i = 0; i < 4; i++)
        demand(x.dims[i] == y.dims[i] || x.dims[i] == 1, "dimensions do not match");
}

void check_pointwise(const operation &o) {
    const size_t n = o.inputs.size();
    for (const tensor &x : o.inputs) same_or_one(x, o.output);
    switch (o.mode) {
    case CUDNN_POINTWISE_GEN_INDEX:
        demand(n == 1 && o.axis >= 0 && o.axis < 4, "GEN_INDEX has one input and an axis");
        demand(o.output.type == CUDNN_DATA_INT32, "GEN_INDEX makes 32-bit integers here");
        return;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY: demand(n == 1, "this pointwise has one input"); return;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV: demand(n == 2, "this pointwise has two inputs"); return;
    case CUDNN_POINTWISE_CMP_GE:
        demand(n == 2 && o.output.type == CUDNN_DATA_BOOLEAN, "CMP_GE makes a truth of two");
        return;
    case CUDNN_POINTWISE_BINARY_SELECT:
        demand(n == 3 && o.inputs[2].type == CUDNN_DATA_BOOLEAN, "BINARY_SELECT wants a truth");
        return;
    default: throw failure(CUDNN_STATUS_NOT_SUPPORTED, "a pointwise that is not emulated");
    }
}

void check_matmul(const operation &o) {
    const tensor &a = o.inputs[0], &b = o.inputs[1], &c = o.output;
    for (int i = 0; i < 2; i++)
        demand(a.dims[i] == c.dims[i] && b.dims[i] == c.dims[i], "a product's batches differ");
    demand(a.dims[2] == c.dims[2] && b.dims[3] == c.dims[3] && a.dims[3] == b.dims[2],
           "a product's rows and columns do not match");
}

/* A reshape here keeps memory and changes the view of it: both views cover it whole. */
void check_reshape(const operation &o) {
    const tensor &x = o.inputs[0], &y = o.output;
    int64_t nx = 1, ny = 1;
    for (int i = 0; i < 4; i++) nx *= x.dims[i], ny *= y.dims[i];
    demand(nx == ny && x.span() == y.span(), "a reshape of other memory");
}

operation operation_of(const descriptor *d) {
    operation o;
    o.kind = d->type;
    const auto in = [&](int name) { o.inputs.push_back(operand(d, name)); };
    if (d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        const descriptor *how =
            child(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
        (void)one<int>(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE);
        in(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        in(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        o.output = operand(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        check_matmul(o);
    } else if (d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
        const descriptor *how = child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                      CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
        o.mode = one<int>(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
        (void)one<int>(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE);
        if (o.mode == CUDNN_POINTWISE_GEN_INDEX)
            o.axis = one<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64);
        in(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        for (int name :
             {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
            if (optional(d, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR)) in(name);
        o.output = operand(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        check_pointwise(o);
    } else if (d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        const descriptor *how =
            child(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
        o.mode = one<int>(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
        (void)one<int>(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE);
        in(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        o.output = operand(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        same_or_one(o.output, o.inputs[0]);
        demand(o.mode == CUDNN_REDUCE_TENSOR_MAX || o.mode == CUDNN_REDUCE_TENSOR_ADD,
               "a reduction that is not emulated");
    } else {
        demand(d->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "not an operation");
        in(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        o.output = operand(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        check_reshape(o);
    }
    demand(!o.output.by_value, "an operation cannot write a number of the host");
    return o;
}

/* Calls body(index) for every element of a tensor. */
template <class F> void each(const tensor &t, F body) {
    int64_t i[4];
    for (i[0] = 0; i[0] < t.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < t.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < t.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < t.dims[3]; i[3]++) body(i);
}

float pointwise_at(const operation &o, float x, float b, float choice, int64_t index) {
    switch (o.mode) {
    case CUDNN_POINTWISE_GEN_INDEX: return (float)index;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_BINARY_SELECT: return choice != 0 ? x : b;
    default: return x; /* IDENTITY */
    }
}
void run_pointwise(const operation &o, const std::vector<place> &in, const place &out) {
    each(out.t, [&](const int64_t *i) {
        const float x = o.mode == CUDNN_POINTWISE_GEN_INDEX ? 0 : in[0].at(in[0].offset(i));
        const float b = in.size() > 1 ? in[1].at(in[1].offset(i)) : 0;
        const float choice = in.size() > 2 ? in[2].at(in[2].offset(i)) : 0;
        out.put(out.offset(i), pointwise_at(o, x, b, choice, i[o.axis]));
    });
}

void run_reduction(const operation &o, const std::vector<place> &in, const place &out) {
    std::vector<float> sum((size_t)out.t.span(), o.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0);
    each(in[0].t, [&](const int64_t *i) {
        float &to = sum[(size_t)out.offset(i)];
        const float x = in[0].at(in[0].offset(i));
        to = o.mode == CUDNN_REDUCE_TENSOR_MAX ? fmaxf(to, x) : to + x;
    });
    each(out.t, [&](const int64_t *i) { out.put(out.offset(i), sum[(size_t)out.offset(i)]); });
}

/* Of one batch, rows of numbers as tensor cores read them. */
std::vector<float> operand_rows(const place &p, int64_t b, int64_t h, cudnnDataType_t type) {
    std::vector<float> rows;
    for (int64_t r = 0; r < p.t.dims[2]; r++)
        for (int64_t c = 0; c < p.t.dims[3]; c++) {
            const int64_t i[4] = {b, h, r, c};
            rows.push_back(rounded(p.at(p.offset(i)), type));
        }
    return rows;
}
void run_matmul(const std::vector<place> &in, const place &out) {
    const bool half = in[0].t.type == CUDNN_DATA_HALF || in[1].t.type == CUDNN_DATA_HALF;
    const bool bf16 = in[0].t.type == CUDNN_DATA_BFLOAT16 || in[1].t.type == CUDNN_DATA_BFLOAT16;
    const cudnnDataType_t type = half   ? CUDNN_DATA_HALF
                                 : bf16 ? CUDNN_DATA_BFLOAT16
                                        : CUDNN_DATA_FLOAT;
    const int64_t m = out.t.dims[2], n = out.t.dims[3], k = in[0].t.dims[3];
    for (int64_t b = 0; b < out.t.dims[0]; b++)
        for (int64_t h = 0; h < out.t.dims[1]; h++) {
            const std::vector<float> x = operand_rows(in[0], b, h, type);
            const std::vector<float> y = operand_rows(in[1], b, h, type);
            for (int64_t r = 0; r < m; r++) {
                std::vector<float> sum((size_t)n, 0.0f);
                for (int64_t i = 0; i < k; i++)
                    for (int64_t c = 0; c < n; c++)
                        sum[(size_t)c] += x[(size_t)(r * k + i)] * y[(size_t)(i * n + c)];
                for (int64_t c = 0; c < n; c++) {
                    const int64_t at[4] = {b, h, r, c};
                    out.put(out.offset(at), sum[(size_t)c]);
                }
            }
        }
}

void run_reshape(const std::vector<place> &in, const place &out) {
    each(out.t, [&](const int64_t *i) { out.put(out.offset(i), in[0].at(out.offset(i))); });
}

/* ---- graphs -------------------------------------------------------------------------------- */

std::vector<operation> operations_of(const descriptor *graph) {
    std::vector<operation> all;
    for (descriptor *d :
         list<descriptor *>(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
        demand(d && d->finished, "an operation is not finished");
        all.push_back(operation_of(d));
    }
    return all;
}

/* Every tensor inside the graph is written once, before it is read, and read; an id has one layout.
 */
void check_graph(const std::vector<operation> &all) {
    std::map<int64_t, tensor> seen;
    std::map<int64_t, int> written, read;
    const auto note = [&](const tensor &t) {
        const auto place = seen.emplace(t.id, t).first;
        demand(!memcmp(place->second.dims, t.dims, sizeof t.dims)
                   && !memcmp(place->second.strides, t.strides, sizeof t.strides)
                   && place->second.type == t.type && place->second.inside == t.inside,
               "id " + std::to_string(t.id) + " has two descriptions");
    };
    for (const operation &o : all) {
        for (const tensor &t : o.inputs) {
            note(t);
            demand(!t.inside || written[t.id] || o.mode == CUDNN_POINTWISE_GEN_INDEX,
                   "tensor " + std::to_string(t.id) + " is read before it is written");
            read[t.id]++;
        }
        note(o.output);
        demand(!written[o.output.id]++, "a tensor is written twice");
    }
    for (const auto &t : seen)
        demand(!t.second.inside || (written[t.first] && read[t.first]),
               "tensor " + std::to_string(t.first) + " is written or read by nobody");
}

/* One execution, on its way on a stream. */
struct job {
    std::vector<operation> operations;
    std::map<int64_t, void *> memory;
    std::map<int64_t, std::vector<char>> numbers; /* of the host, as they were at the call */
    std::map<int64_t, std::shared_ptr<std::vector<float>>> inside;
    void *workspace;
    size_t workspace_bytes;

    place find(const tensor &t) {
        place p;
        p.t = t;
        if (t.by_value)
            p.memory = numbers[t.id].data();
        else if (!t.inside)
            p.memory = memory[t.id];
        else {
            auto &own = inside[t.id];
            if (!own) own = std::make_shared<std::vector<float>>((size_t)t.span(), NAN);
            p.own = own;
        }
        return p;
    }
    void run() {
        if (workspace_bytes) memset(workspace, 0xFF, workspace_bytes);
        for (const operation &o : operations) {
            std::vector<place> in;
            for (const tensor &t : o.inputs) in.push_back(find(t));
            const place out = find(o.output);
            if (o.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
                run_matmul(in, out);
            else if (o.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                run_pointwise(o, in, out);
            else if (o.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
                run_reduction(o, in, out);
            else
                run_reshape(in, out);
        }
    }
};

/* Everything that the graph names must be there, and nothing else. */
void fill(job *j, const descriptor *pack) {
    const auto ids = list<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64);
    const auto data =
        list<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR);
    demand(ids.size() == data.size(), "as many ids as pointers");
    std::map<int64_t, void *> given;
    for (size_t i = 0; i < ids.size(); i++)
        demand(given.emplace(ids[i], data[i]).second && data[i], "an id twice, or NULL");
    std::map<int64_t, tensor> wanted;
    for (const operation &o : j->operations) {
        for (const tensor &t : o.inputs)
            if (!t.inside) wanted[t.id] = t;
        if (!o.output.inside) wanted[o.output.id] = o.output;
    }
    for (const auto &g : given)
        demand(wanted.count(g.first), "id " + std::to_string(g.first) + " is not in the graph");
    for (const auto &w : wanted) {
        demand(given.count(w.first), "id " + std::to_string(w.first) + " has no pointer");
        const char *p = (const char *)given[w.first];
        if (w.second.by_value)
            j->numbers[w.first].assign(p, p + sizeof(float));
        else {
            demand((uintptr_t)p % 16 == 0, "id " + std::to_string(w.first) + " is not aligned");
            j->memory[w.first] = given[w.first];
        }
    }
}

/* ---- engines ------------------------------------------------------------------------------- */

enum { ENGINES = 3, ENGINE_BROKEN = 0, ENGINE_ANY_ORDER = 1, ENGINE_FIXED_ORDER = 2 };

/* Of a plan. Only backward has a reshape. */
int64_t workspace_of(const descriptor *graph, int engine) {
    int64_t bytes = 0;
    bool backward = false;
    if (engine != ENGINE_FIXED_ORDER) return 256 + state.more_bytes;
    for (const operation &o : operations_of(graph)) {
        const int64_t *d = o.output.dims;
        const int64_t matrix =
            d[0] * d[1] * ((d[2] + 63) / 64 * 64) * ((d[3] + 127) / 128 * 128) * 2;
        backward |= o.kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
        if (o.mode == CUDNN_POINTWISE_EXP && d[2] == d[3]) bytes = matrix;
    }
    return (backward ? bytes + 256 : 256) + state.more_bytes;
}

void finish(descriptor *d) {
    switch ((int)d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: (void)tensor_of(d); break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: (void)operation_of(d); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        (void)one<void *>(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE);
        check_graph(operations_of(d));
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        d->graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                         CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        demand(one<int>(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE) == CUDNN_HEUR_MODE_A,
               "mode A");
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
        const descriptor *config =
            child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        (void)one<void *>(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE);
        d->graph = config->graph;
        d->engine = config->engine;
        if (d->engine == ENGINE_BROKEN)
            throw failure(CUDNN_STATUS_NOT_SUPPORTED, "this engine cannot be made a plan");
        break;
    }
    default: break;
    }
    d->finished = true;
}

void get_results(const descriptor *d, int64_t wanted, int64_t *count, void *to) {
    descriptor **configs = (descriptor **)to;
    const int64_t n = state.engines < ENGINES ? state.engines : (int64_t)ENGINES;
    *count = n;
    for (int64_t i = 0; i < n && i < wanted; i++) {
        demand(configs[i] && configs[i]->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
               "results want descriptors of configurations");
        configs[i]->engine = (int)i;
        configs[i]->graph = d->graph;
        configs[i]->finished = true;
    }
}

void get(descriptor *d, int name, int64_t wanted, int64_t *count, void *to) {
    demand(d->finished, "the descriptor is not finished");
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        get_results(d, wanted, count, to);
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        descriptor *engine = *(descriptor **)to;
        demand(engine && engine->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine's descriptor");
        engine->engine = d->engine;
        engine->finished = true;
        *count = 1;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        *count = 1 + (d->engine == ENGINE_ANY_ORDER);
        ((int *)to)[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        if (*count == 2) ((int *)to)[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    } else {
        demand(name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, "a question that is not emulated");
        *(int64_t *)to = workspace_of(d->graph, d->engine);
        *count = 1;
    }
}

struct handle {
    cudaStream_t stream = nullptr;
};

void execute(handle *h, descriptor *plan, descriptor *pack) {
    demand(plan->finished && pack->finished, "not finished");
    demand(plan->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
    demand(one<handle *>(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE) == h,
           "the plan belongs to another handle");
    std::unique_ptr<job> j(new job);
    j->operations = operations_of(plan->graph);
    fill(j.get(), pack);
    j->workspace = one<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR);
    j->workspace_bytes = (size_t)workspace_of(plan->graph, plan->engine);
    demand(j->workspace || !j->workspace_bytes, "no workspace");
    state.operations = (int)j->operations.size();
    state.engine = plan->engine;
    state.runs++;
    const auto run = [first = std::shared_ptr<job>(std::move(j))] {
        job again = *first; /* a graph may run it several times */
        again.run();
    };
    if (emulation::enqueue_work(h->stream, "cuDNN", run) != cudaSuccess)
        throw failure(CUDNN_STATUS_EXECUTION_FAILED, "the stream takes no work");
}

} // namespace

cudnn_emulation *cudnn_emulated(void) { return &state; }

extern "C" {

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t s) {
    return s == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : s == CUDNN_STATUS_BAD_PARAM     ? "CUDNN_STATUS_BAD_PARAM"
           : s == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                             : "CUDNN_STATUS_INTERNAL_ERROR";
}
void cudnnGetLastErrorString(char *message, size_t bytes) {
    (void)snprintf(message, bytes, "%s", last_error.c_str());
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *h) {
    return guarded("cudnnCreate", [&] { *h = (cudnnHandle_t) new handle; });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
    delete (handle *)h;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream) {
    return guarded("cudnnSetStream", [&] { ((handle *)h)->stream = stream; });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *d) {
    return guarded("cudnnBackendCreateDescriptor", [&] {
        descriptor *made = new descriptor;
        made->type = type;
        *d = made;
        state.live++;
    });
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
    if (d) state.live--;
    delete (descriptor *)d;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
    return guarded("cudnnBackendSetAttribute", [&] {
        demand(!of(d)->finished, "the descriptor is finished");
        demand(values && count > 0, "no values");
        const char *p = (const char *)values;
        of(d)->attributes[name] = {type, count, {p, p + (size_t)count * bytes_of(type)}};
    });
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
    return guarded("cudnnBackendFinalize", [&] { finish(of(d)); });
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t wanted, int64_t *count,
                                       void *to) {
    return guarded("cudnnBackendGetAttribute", [&] { get(of(d), name, wanted, count, to); });
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    return guarded("cudnnBackendExecute", [&] { execute((handle *)h, of(plan), of(pack)); });
}
}
