// Asynchronous operations: products of warpgroups and loads of boxes.
#pragma once

#include "memory.h"

namespace machine {
namespace {

// Products.

u32 swizzled(u32 address, u64 bytes = 128) { return address ^ (address >> 7 & (bytes - 1) >> 4) << 4; }

u32 start_of(u64 descriptor) { return (descriptor & 0x3FFF) << 4; }

constexpr u64 WINDOWS =
    (u64(8) << 32) |
    // no swizzle, atoms of eight rows of 16 bytes: the next along k is 16 bytes away, the next eight rows 128
    (1 << 16);

bool has_windows(u64 descriptor) { return (descriptor & ~u64(0x3FFF)) == WINDOWS; }

void check_descriptor(u64 descriptor) {
    if (has_windows(descriptor)) return;
    if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3FFF) != 64 || (descriptor >> 49 & 7) != 0)
        report(text("a descriptor %llx that the machine does not know", static_cast<unsigned long long>(descriptor)));
}

// Returns elements 8 * `half` to 8 * `half` + 7 of a row of a K-major operand, with 128-byte swizzle or without.
void elements(Block& block, u64 descriptor, u32 row, u32 half, float (&values)[8]) {
    const u32 start = start_of(descriptor);
    const u32 offset = has_windows(descriptor) ? start + (row + half) * 16 : swizzled(start + row * 128 + 16 * half);
    u16 halves[8];
    std::memcpy(halves, bytes_of(block, offset, 16), 16);
    for (u32 i = 0; i < 8; ++i) values[i] = values_of_halves[halves[i]];
}

// Sixteen rows of one wgmma, by one warp.
void compute(Block& block, u32 warp, const Group& group, u64 number) {
    const Product& first = group.products[0][number];
    float a[16][16], b[16][256], sums[16][256] = {}, eight[8];
    for (u32 half = 0; half < 2; ++half) {
        for (u32 row = 0; !first.in_registers && row < 16; ++row) {
            elements(block, first.a, warp % 4 * 16 + row, half, eight);
            for (u32 k = 0; k < 8; ++k) a[row][8 * half + k] = eight[k];
        }
        for (int column = 0; !first.in_registers && column < first.width; ++column) {
            elements(block, first.b, column, half, eight);
            for (u32 k = 0; k < 8; ++k) b[8 * half + k][column] = eight[k];
        }
    }
    for (u32 lane = 0; first.in_registers && lane < 32; ++lane)
        for (u32 part = 0; part < 4; ++part)
            for (u32 i = 0; i < 2; ++i)
                a[lane / 4 + part % 2 * 8][lane % 4 * 2 + i + part / 2 * 8] =
                    values_of_halves[u16(group.products[lane][number].rows[part] >> 16 * i)];
    for (u32 k = 0; first.in_registers && k < 16; ++k)
        for (int columns = 0; columns < first.width; columns += 8) {
            elements(block, first.b, k, columns / 8, eight);
            for (u32 i = 0; i < 8; ++i) b[k][columns + i] = eight[i];
        }
    for (u32 row = 0; row < 16; ++row)
        for (u32 k = 0; k < 16; ++k)
            for (int column = 0; column < first.width; ++column) sums[row][column] += a[row][k] * b[k][column];
    for (u32 lane = 0; lane < 32; ++lane) {
        float* to = group.products[lane][number].sums;
        for (int eight = 0; eight < first.width / 8; ++eight)
            for (u32 i = 0; i < 4; ++i)
                to[4 * eight + i] += sums[lane / 4 + i / 2 * 8][8 * eight + lane % 4 * 2 + i % 2];
    }
}

void compute_group(u32 number) {
    Warp& warp = warps[number];
    const std::unique_ptr<Group> group = std::move(warp.groups.front());
    warp.groups.pop_front();
    Block& block = blocks[number / WARPS];
    for (u64 i = 0; i < group->products[0].size(); ++i) compute(block, number % WARPS, *group, i);
    progress = true;
    for (u32 lane = 0; lane < 32; ++lane) {
        Fiber& fiber = fibers[number * 32 + lane];
        if (std::strcmp(fiber.waits_for, "products") == 0) wake(fiber);
    }
}

u32 bytes_of_row(const Map& map) { return map.swizzle == 128 ? 128 : 2 * map.box[0]; }

// Loads. The rows of the box follow each other, with 128 bytes each if they are swizzled.
void copy_box(Block& block, u32 to, const Map& map, const int (&at)[4]) {
    u32 counts[4];
    for (u32 i = 0; i < 4; ++i) counts[i] = (map.box[i] + map.steps[i] - 1u) / map.steps[i];
    u32 row = 0;
    for (u32 w = 0; w < counts[3]; ++w)
        for (u32 z = 0; z < counts[2]; ++z)
            for (u32 y = 0; y < counts[1]; ++y, ++row) {
                const std::int64_t outer[3] = {at[1] + std::int64_t(y) * map.steps[1],
                                               at[2] + std::int64_t(z) * map.steps[2],
                                               at[3] + std::int64_t(w) * map.steps[3]};
                const u16* from = reinterpret_cast<const u16*>(map.address);
                bool inside = true;
                for (u32 i = 0; i < 3; ++i) {
                    inside &= outer[i] >= 0 && u64(outer[i]) < map.sizes[i + 1];
                    from += outer[i] * std::int64_t(map.strides[i]) / 2;
                }
                for (u32 chunk = 0; chunk < bytes_of_row(map) / 16; ++chunk) {
                    u16 halves[8];
                    for (u32 i = 0; i < 8; ++i) {
                        const std::int64_t x = at[0] + std::int64_t(8 * chunk + i);
                        halves[i] = inside && x >= 0 && u64(x) < map.sizes[0] ? from[x] : 0;
                    }
                    const u32 at = to + row * bytes_of_row(map) + chunk * 16;
                    std::memcpy(bytes_of(block, map.swizzle == 0 ? at : swizzled(at, map.swizzle), 16), halves, 16);
                }
            }
}

u32 bytes_of_box(const Map& map) {
    u32 rows = 1;
    for (u32 i = 1; i < 4; ++i) rows *= (map.box[i] + map.steps[i] - 1u) / map.steps[i];
    return rows * bytes_of_row(map);
}

float value_of_half(u16 half) {
    if (BFLOATS) {
        const u32 bits = u32(half) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                       : exponent     ? std::ldexp(float(1024 + mantissa), exponent - 25)
                                      : std::ldexp(float(mantissa), -24);
    return half >> 15 ? -size : size;
}

}  // namespace
}  // namespace machine
