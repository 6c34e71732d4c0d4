// Halves in registers, and the epilogue of a product.
#pragma once

#include "tables.cuh"

struct Eight {
    float v[8];
};

__device__ __forceinline__ Eight unpacked(const uint4& halves) {
    Eight e;
    unpack_two(halves.x, e.v[0], e.v[1]);
    unpack_two(halves.y, e.v[2], e.v[3]);
    unpack_two(halves.z, e.v[4], e.v[5]);
    unpack_two(halves.w, e.v[6], e.v[7]);
    return e;
}

__device__ __forceinline__ uint4 packed(const Eight& e) {
    uint4 halves;
    halves.x = pack(e.v[0], e.v[1]);
    halves.y = pack(e.v[2], e.v[3]);
    halves.z = pack(e.v[4], e.v[5]);
    halves.w = pack(e.v[6], e.v[7]);
    return halves;
}

__device__ __forceinline__ float4 unpacked(const uint2& halves) {
    float4 v;
    unpack_two(halves.x, v.x, v.y);
    unpack_two(halves.y, v.z, v.w);
    return v;
}

__device__ __forceinline__ uint2 packed(const float4& v) {
    uint2 halves;
    halves.x = pack(v.x, v.y);
    halves.y = pack(v.z, v.w);
    return halves;
}

// The bits of floats, and back.
__device__ __forceinline__ uint4 words(const float4& v) {
    uint4 bits;
    bits.x = __float_as_uint(v.x), bits.y = __float_as_uint(v.y), bits.z = __float_as_uint(v.z),
    bits.w = __float_as_uint(v.w);
    return bits;
}

__device__ __forceinline__ float4 floats(const uint4& v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

__device__ __forceinline__ float4 sum(const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <int EPILOGUE>
__device__ __forceinline__ float activated(float v) {
    if constexpr (EPILOGUE == GELU) return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    if constexpr (EPILOGUE == GELU_TANH)
        return __fdividef(
            v, 1.0f + __expf(-1.5957691216f *
                             (v + 0.044715f * v * v * v)));  // (1 + tanh(u)) / 2 is the logistic function of 2 u
    if constexpr (EPILOGUE == SILU) return __fdividef(v, 1.0f + __expf(-v));
    if constexpr (EPILOGUE == RELU) return fmaxf(v, 0.0f);
    return v;
}

template <int EPILOGUE>
__device__ __forceinline__ float4 activated(const float4& v) {
    return make_float4(activated<EPILOGUE>(v.x), activated<EPILOGUE>(v.y), activated<EPILOGUE>(v.z),
                       activated<EPILOGUE>(v.w));
}
