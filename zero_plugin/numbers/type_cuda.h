/* type_cuda.h - loads and stores of neighbouring values on the GPU; a part of type.h */
#pragma once

#define ZP_WIDE ((size_t)4)
/* Loading has two steps, so that a thread issues all its reads before it waits for the first. */
ZP_FN uint4 zp_type_load_words(const void *from, zero_type type, size_t i) {
    if (type == ZERO_F32) return *(const uint4 *)(const void *)((const float *)from + i);
    const uint2 h = *(const uint2 *)(const void *)((const uint16_t *)from + i);
    return make_uint4(h.x & 0xFFFFu, h.x >> 16, h.y & 0xFFFFu, h.y >> 16);
}
ZP_FN void zp_type_unpack_words(float *x, uint4 words, zero_type type) {
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
    if (type == ZERO_F16)
        for (size_t j = 0; j < 4; j++) x[j] = zp_type_from_f16((uint16_t)all[j]);
    else
        for (size_t j = 0; j < 4; j++)
            x[j] = zp_type_bits_to_float(type == ZERO_F32 ? all[j] : all[j] << 16);
}
ZP_FN void zp_type_add_low_words(float *x, uint4 low) {
    const uint32_t all[4] = {low.x, low.y, low.z, low.w};
    for (size_t j = 0; j < 4; j++) x[j] = zp_type_add_low(x[j], (uint16_t)all[j]);
}
ZP_FN void zp_type_load_wide(float *x, const void *from, zero_type type, size_t i) {
    zp_type_unpack_words(x, zp_type_load_words(from, type, i), type);
}
ZP_FN void zp_type_store_wide(void *to, zero_type type, size_t i, const float *x) {
    if (type == ZERO_F32) {
        *(float4 *)(void *)((float *)to + i) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    uint16_t h[4];
    if (type == ZERO_BF16)
        for (size_t j = 0; j < 4; j++) h[j] = zp_type_to_bf16(x[j]);
    else
        for (size_t j = 0; j < 4; j++) h[j] = zp_type_to_f16(x[j]);
    *(ushort4 *)(void *)((uint16_t *)to + i) = make_ushort4(h[0], h[1], h[2], h[3]);
}
