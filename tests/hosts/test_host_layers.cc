// test_host_layers.cc - a host in C++17 whose layers are objects with a pointer per tensor, bound
// by slot; hooks are scopes. See host_own.h.
#include "host_own.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace {

constexpr int layers = 3, channels = 10, hidden = 14, classes = 7, rows = 6;

struct Tensor { // where the plugin writes its two pointers
    float *data = nullptr, *grad = nullptr;
};

// Begin and end hooks as a scope.
class Forward {
  public:
    Forward(own_run *r, int unit) : run(r), number(unit) { own_forward_begin(run, number); }
    ~Forward() { own_forward_end(run, number); }
    Forward(const Forward &) = delete;
    Forward &operator=(const Forward &) = delete;

  private:
    own_run *run;
    int number;
};
class Backward {
  public:
    Backward(own_run *r, int unit, bool reads) : run(r), number(unit) {
        own_backward_begin(run, number, reads ? 1 : 0);
    }
    ~Backward() { own_backward_end(run, number); }
    Backward(const Backward &) = delete;
    Backward &operator=(const Backward &) = delete;

  private:
    own_run *run;
    int number;
};

// x + v tanh(w norm(x) + b)
struct Block {
    Tensor gain, w, b, v;
    std::array<float, rows * channels> x, h;
    std::array<float, rows * hidden> a;

    void forward(std::vector<float> &stream) {
        std::array<float, rows * channels> y;
        std::copy(stream.begin(), stream.end(), x.begin());
        own_rmsnorm(h.data(), x.data(), gain.data, rows, channels);
        own_linear(a.data(), h.data(), w.data, b.data, rows, channels, hidden);
        for (float &z : a) z = std::tanh(z);
        own_linear(y.data(), a.data(), v.data, nullptr, rows, hidden, channels);
        for (std::size_t i = 0; i < y.size(); i++) stream[i] += y[i];
    }
    void backward(std::vector<float> &d) {
        std::array<float, rows * hidden> da{};
        std::array<float, rows * channels> dh{};
        own_linear_backward(da.data(), v.grad, nullptr, d.data(), a.data(), v.data, rows, hidden,
                            channels);
        for (std::size_t i = 0; i < a.size(); i++) da[i] *= 1 - a[i] * a[i];
        own_linear_backward(dh.data(), w.grad, b.grad, da.data(), h.data(), w.data, rows, channels,
                            hidden);
        own_rmsnorm_backward(d.data(), gain.grad, dh.data(), x.data(), gain.data, rows, channels);
    }
};

struct Model {
    Tensor head;
    std::vector<Block> blocks = std::vector<Block>(layers);
    std::vector<float> stream = std::vector<float>(rows * channels);

    // In the order of the descriptions below.
    Tensor &tensor(int t, int layer) {
        Block &b = blocks[static_cast<std::size_t>(layer)];
        Tensor *const list[] = {&b.gain, &b.w, &b.b, &b.v, &head};
        return *list[t];
    }
    double pass(own_run *r);
};

double Model::pass(own_run *r) {
    std::array<float, rows * classes> logits;
    std::array<int, rows> target;
    for (int i = 0; i < rows * channels; i++)
        stream[static_cast<std::size_t>(i)] =
            own_value(61, static_cast<uint64_t>(r->rank), static_cast<uint64_t>(r->micro),
                      static_cast<uint64_t>(i));
    for (std::size_t i = 0; i < rows; i++)
        target[i] = static_cast<int>(std::fabs(stream[i * channels]) * classes) % classes;
    for (int l = 0; l < layers; l++) {
        const Forward scope(r, l);
        blocks[static_cast<std::size_t>(l)].forward(stream);
    }
    {
        const Forward scope(r, layers);
        own_linear(logits.data(), stream.data(), head.data, nullptr, rows, channels, classes);
    }
    const double loss = own_cross_entropy(logits.data(), target.data(), rows, classes, r->scale);
    std::vector<float> d(rows * channels);
    {
        const Backward scope(r, layers, true);
        own_linear_backward(d.data(), head.grad, nullptr, logits.data(), stream.data(), head.data,
                            rows, channels, classes);
    }
    for (int l = layers - 1; l >= 0; l--) {
        const Backward scope(r, l, true);
        blocks[static_cast<std::size_t>(l)].backward(d);
    }
    return loss;
}

float **slot(void *state, int t, int layer, int grad) {
    Tensor &x = static_cast<Model *>(state)->tensor(t, layer);
    return grad ? &x.grad : &x.data;
}

zero_tensor_desc row(const char *name, size_t numel, int unit, int flags) {
    zero_tensor_desc d{};
    d.name = name;
    d.numel = numel;
    d.layers = unit ? 1 : layers;
    d.unit = unit;
    d.flags = flags;
    return d;
}

own_host host(int micro_steps) {
    constexpr int vector = ZERO_ONE_D | ZERO_NO_DECAY;
    own_host h{};
    h.name = micro_steps > 1 ? "layers in C++, micro-steps" : "layers in C++";
    h.ntensors = 5;
    h.micro_steps = micro_steps;
    h.desc[0] = row("gain", channels, 0, vector);
    h.desc[1] = row("w", hidden * channels, 0, 0);
    h.desc[2] = row("b", hidden, 0, vector);
    h.desc[3] = row("v", channels * hidden, 0, 0);
    h.desc[4] = row("head", classes * channels, layers, 0);
    h.slot = slot;
    h.open = []() -> void * { return new Model; };
    h.close = [](void *state) { delete static_cast<Model *>(state); };
    h.pass = [](own_run *r, void *state) { return static_cast<Model *>(state)->pass(r); };
    return h;
}

} // namespace

int main() {
    for (const int micro_steps : {1, 2}) {
        const own_host h = host(micro_steps);
        own_test(&h);
    }
    return test_summary();
}
