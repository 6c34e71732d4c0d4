// The programs: parent kernels whose threads have items of work, and the work of an item. Results are integers that
// do not depend on the order.
#pragma once

#include "spawn.cuh"

namespace works {

using spawn::Control;

constexpr int FAR = 0x3FFFFFFF;

__device__ inline int thread_number() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

// Breadth-first search and shortest paths: one round per frontier, one thread per vertex of it, one item per edge.
struct Edges {
    const int *first, *target, *weight;
};

struct Relax {
    const int *target, *weight;  // edges of the vertex
    int* distance;
    int* mark;  // the round in which a vertex was put into the next frontier
    int* frontier;  // the next frontier
    int* size;
    int reached, round;
    bool weighted;

    __device__ void operator()(int i) const {
        const int to = target[i], away = reached + (weighted ? weight[i] : 1);
        if (atomicMin(&distance[to], away) > away && atomicExch(&mark[to], round) != round)
            frontier[atomicAdd(size, 1)] = to;
    }
};

__global__ void search(Control* control, Edges edges, const int* frontier, int count, int* distance, int* mark,
                       int* next, int* size, int round, bool weighted) {
    const int number = thread_number();
    if (number >= count) return;
    const int v = frontier[number], begin = edges.first[v];
    const Relax relax = {edges.target + begin,
                         edges.weight + begin,
                         distance,
                         mark,
                         next,
                         size,
                         spawn::seen(distance[v]),
                         round,
                         weighted};
    spawn::each(control, edges.first[v + 1] - begin, relax);
}

// Colouring after Jones and Plassmann: a vertex with the highest priority among its neighbours without a colour takes
// the lowest colour that no neighbour has.
struct Beaten {
    const int *target, *colour;
    int* wins;  // of this vertex
    int v;

    __device__ static unsigned priority(int v) {
        return static_cast<unsigned>(v) * 2654435761u;
    }  // odd: no two are equal
    __device__ void operator()(int i) const {
        const int to = target[i];
        if (colour[to] < 0 && priority(to) > priority(v)) *wins = 0;
    }
};

struct Taken {
    const int *target, *colour;
    unsigned* mask;  // COLOUR_WORDS words of this vertex

    __device__ void operator()(int i) const {
        const int other = colour[target[i]];
        if (other >= 0) atomicOr(mask + other / 32, 1u << other % 32);
    }
};

constexpr int COLOUR_WORDS = 32;

__global__ void contest(Control* control, Edges edges, int vertices, const int* colour, int* wins) {
    const int v = thread_number();
    if (v >= vertices || colour[v] >= 0) return;
    const int begin = edges.first[v];
    spawn::each(control, edges.first[v + 1] - begin, Beaten{edges.target + begin, colour, wins + v, v});
}

__global__ void gather(Control* control, Edges edges, int vertices, const int* colour, const int* wins,
                       unsigned* masks) {
    const int v = thread_number();
    if (v >= vertices || colour[v] >= 0 || !wins[v]) return;
    const int begin = edges.first[v];
    spawn::each(control, edges.first[v + 1] - begin, Taken{edges.target + begin, colour, masks + COLOUR_WORDS * v});
}

__global__ void settle(int vertices, int* colour, int* wins, const unsigned* masks, int* left) {
    const int v = thread_number();
    if (v >= vertices || colour[v] >= 0) return;
    if (wins[v]) {
        int lowest = 0;
        while (lowest < 32 * COLOUR_WORDS - 1 && (masks[COLOUR_WORDS * v + lowest / 32] >> lowest % 32 & 1)) ++lowest;
        colour[v] = lowest;
    } else {
        wins[v] = 1;
        atomicAdd(left, 1);
    }
}

// Mandelbrot: a thread per tile of pixels computes the tile's border; if the border has several colours, the pixels
// inside are its items.
#ifndef SPAWN_MOST_STEPS  // a harness may lower it
#define SPAWN_MOST_STEPS 512
#endif
constexpr int MOST_STEPS = SPAWN_MOST_STEPS;

struct Plane {
    int width, tile;
    float left, low, step;

    __device__ int steps(int x, int y) const {
        const float re = left + step * static_cast<float>(x), im = low + step * static_cast<float>(y);
        float a = re, b = im;
        for (int n = 0; n < MOST_STEPS; ++n) {
            const float aa = a * a, bb = b * b;
            if (aa + bb > 4.0f) return n;
            b = 2.0f * a * b + im;
            a = aa - bb + re;
        }
        return MOST_STEPS;
    }
};

struct Pixel {
    Plane plane;
    int x, y, fill;  // where the tile begins; its colour, or -1 for several
    int* image;

    __device__ void operator()(int i) const {
        const int side = plane.tile - 2, px = x + 1 + i % side, py = y + 1 + i / side;
        image[py * plane.width + px] = plane.steps(px, py);
    }
};

__global__ void mandelbrot(Control* control, Plane plane, int* image) {
    const int across = plane.width / plane.tile, number = thread_number();
    if (number >= across * across) return;
    const int x = number % across * plane.tile, y = number / across * plane.tile, last = plane.tile - 1;
    int common = -1;
    bool same = true;
    for (int i = 0; i < 4 * last; ++i) {
        const int side = i / last, at = i % last;
        const int px = x + (side == 0 ? at : side == 1 ? last : side == 2 ? last - at : 0);
        const int py = y + (side == 0 ? 0 : side == 1 ? at : side == 2 ? last : last - at);
        const int steps = plane.steps(px, py);
        image[py * plane.width + px] = steps;
        same = same && (i == 0 || steps == common);
        common = steps;
    }
    if (same) {
        for (int i = 0; i < (plane.tile - 2) * (plane.tile - 2); ++i)
            image[(y + 1 + i / (plane.tile - 2)) * plane.width + x + 1 + i % (plane.tile - 2)] = common;
    } else {
        spawn::each(control, (plane.tile - 2) * (plane.tile - 2), Pixel{plane, x, y, -1, image});
    }
}

// After Mariani and Silver, in one launch: squares whose border has several colours are divided by children of
// children; the pixels of the smallest squares are also items.
struct Divide {
    Control* control;
    Plane plane;
    int x, y, size;  // corner and side of the square; its parts are the items, or its pixels
    int* image;

    static constexpr int ALONG = 8;  // parts per side
    __device__ bool is_small() const { return size <= 2 * ALONG; }
    __device__ int items() const { return is_small() ? size * size : ALONG * ALONG; }
    __device__ int& pixel(int px, int py) const { return image[py * plane.width + px]; }

    __device__ void visit() const {
        const int first = plane.steps(x, y), last = size - 1;
        bool same = true;
        for (int i = 0; i < 4 * last && same; ++i) {
            const int side = i / last, at = i % last;
            same = first == plane.steps(x + (side == 0   ? at
                                             : side == 1 ? last
                                             : side == 2 ? last - at
                                                         : 0),
                                        y + (side == 0   ? 0
                                             : side == 1 ? at
                                             : side == 2 ? last
                                                         : last - at));
        }
        if (!same) {
            spawn::each(control, items(), *this);
            return;
        }
        for (int i = 0; i < size * size; ++i) pixel(x + i % size, y + i / size) = first;
    }

    __device__ void operator()(int i) const {
        if (is_small()) {
            pixel(x + i % size, y + i / size) = plane.steps(x + i % size, y + i / size);
        } else {
            const int part = size / ALONG;
            Divide{control, plane, x + i % ALONG * part, y + i / ALONG * part, part, image}.visit();
        }
    }
};

__global__ void mariani_silver(Control* control, Plane plane, int* image) {
    const int across = plane.width / plane.tile, number = thread_number();
    if (number < across * across)
        Divide{control, plane, number % across * plane.tile, number / across * plane.tile, plane.tile, image}.visit();
}

// Regular expressions: one thread per line of text, one item per character, at which a match may begin. The automaton
// is Glushkov's: one bit per character of the pattern.
struct Automaton {
    // positions at the beginning, at the end, after each position, and of each byte
    unsigned long long first, last, follow[64], of[256];
};

struct MatchFrom {
    const Automaton* automaton;
    const unsigned char* text;  // text of the line
    int length;
    int *matches, *longest;  // results of the line

    __device__ void operator()(int i) const {
        unsigned long long state = automaton->first & automaton->of[text[i]];
        int matched = 0;
        for (int at = i + 1; state != 0; ++at) {
            if (state & automaton->last) matched = at - i;
            if (at == length) break;
            unsigned long long next = 0;
            for (unsigned long long rest = state; rest != 0; rest &= rest - 1) next |= automaton->follow[lowest(rest)];
            state = next & automaton->of[text[at]];
        }
        if (matched > 0) atomicAdd(matches, 1), atomicMax(longest, matched);
    }
    __device__ static int lowest(unsigned long long word) {
#ifdef __CUDA_ARCH__
        return __ffsll(static_cast<long long>(word)) - 1;
#else
        return __builtin_ctzll(word);
#endif
    }
};

__global__ void match(Control* control, const Automaton* automaton, const unsigned char* text, const int* line,
                      int lines, int* matches, int* longest) {
    const int number = thread_number();
    if (number >= lines) return;
    const int begin = line[number], length = line[number + 1] - begin;
    spawn::each(control, length, MatchFrom{automaton, text + begin, length, matches + number, longest + number});
}

// A join: one thread per probing row, one item per matching row. The position of a pair in the result is known
// before.
struct Match {
    const int* rows;
    int* out;
    int row;

    __device__ void operator()(int i) const { out[i] = (row * 31 + rows[i]) ^ row >> 3; }
};

__global__ void join(Control* control, const int* key, int count, const int* first, const int* rows, const int* place,
                     int* out) {
    const int number = thread_number();
    if (number >= count) return;
    const int begin = first[key[number]];
    spawn::each(control, first[key[number] + 1] - begin, Match{rows + begin, out + place[number], number});
}

// Adaptive refinement: one thread per cell of a level; if the field is steep, the cell is divided, and its parts, the
// items, are computed and belong to the next level.
struct Cell {
    int x, y;
};

struct Field {
    int side;  // side of the finest level

    __device__ int value(int x, int y) const {  // three ridges, in whole numbers
        const long long a = 2ll * x - side, b = 2ll * y - side, r = (a * a + b * b) / side;
        const long long ring = r - side / 3, line = a + b / 2, other = a * 2 - b + side / 4;
        const auto steep = [&](long long d) { return static_cast<int>(side * 64ll / (1 + (d < 0 ? -d : d))); };
        return steep(ring) + steep(line) + steep(other);
    }

    __device__ bool is_steep(const Cell& cell, int size, int steep) const {
        int most = 0, least = FAR;
        for (int i = 0; i < 9; ++i) {
            const int at = value(cell.x + size * (i % 3) / 2, cell.y + size * (i / 3) / 2);
            most = at > most ? at : most, least = at < least ? at : least;
        }
        return most - least >= steep;
    }

    __device__ unsigned total(const Cell& part, int size) const {
        unsigned sum = 0;
        for (int n = 0; n < 16; ++n)
            sum += static_cast<unsigned>(value(part.x + size * (n % 4) / 4, part.y + size * (n / 4) / 4)) * (n + 1);
        return sum;
    }
};

struct Refine {
    Field field;
    Cell corner;
    int parts, size;  // parts along a side, and size of each
    Cell* next;  // from this cell's position on
    unsigned long long* sum;

    __device__ void operator()(int i) const {
        const Cell part = {corner.x + i % parts * size, corner.y + i / parts * size};
        next[i] = part;
        atomicAdd(sum, static_cast<unsigned long long>(field.total(part, size)));
    }
};

__global__ void refine(Control* control, Field field, const Cell* cells, int count, int size, int parts, int steep,
                       Cell* next, int* created, unsigned long long* sum) {
    const int number = thread_number();
    if (number >= count) return;
    const Cell cell = cells[number];
    if (!field.is_steep(cell, size, steep)) return;
    const int place = atomicAdd(created, parts * parts);
    spawn::each(control, parts * parts, Refine{field, cell, parts, size / parts, next + place, sum});
}

// The same in one launch: steep parts refine themselves, in children of children.
struct Deepen {
    Control* control;
    Field field;
    Cell corner;
    int parts, size, steep, levels;
    int* cells;
    unsigned long long* sum;

    __device__ void operator()(int i) const {
        const Cell part = {corner.x + i % parts * size, corner.y + i / parts * size};
        atomicAdd(cells, 1);
        atomicAdd(sum, static_cast<unsigned long long>(field.total(part, size)));
        if (levels > 1 && size >= parts && field.is_steep(part, size, steep))
            spawn::each(control, parts * parts,
                        Deepen{control, field, part, parts, size / parts, steep, levels - 1, cells, sum});
    }
};

__global__ void deepen(Control* control, Field field, const Cell* coarse, int count, int size, int parts, int steep,
                       int levels, int* cells, unsigned long long* sum) {
    const int number = thread_number();
    if (number < count && field.is_steep(coarse[number], size, steep))
        spawn::each(control, parts * parts,
                    Deepen{control, field, coarse[number], parts, size / parts, steep, levels, cells, sum});
}

// Quick sort, round by round: one thread per segment, one item per key that is moved below or above the pivot.
struct Segment {
    int begin, end;
};

constexpr int SMALL_SEGMENT = 16;

struct Partition {
    const int* from;  // keys of the segment
    int* to;  // all keys
    int *low, *high;  // number of keys that went to either side
    int begin, end, pivot;

    __device__ void operator()(int i) const {
        const int key = from[i];
        if (key < pivot) to[begin + atomicAdd(low, 1)] = key;
        if (key > pivot) to[end - 1 - atomicAdd(high, 1)] = key;
    }
};

__global__ void partition(Control* control, const Segment* segments, int count, const int* from, int* to, int* pivots,
                          int* low, int* high) {
    const int number = thread_number();
    if (number >= count) return;
    const Segment segment = segments[number];
    const int a = from[segment.begin], b = from[(segment.begin + segment.end) / 2], c = from[segment.end - 1];
    const int smaller = a < b ? a : b, larger = a < b ? b : a;
    const int pivot = c < smaller ? smaller : c < larger ? c : larger;  // the median
    pivots[number] = pivot, low[number] = high[number] = 0;
    spawn::each(control, segment.end - segment.begin,
                Partition{from + segment.begin, to, low + number, high + number, segment.begin, segment.end, pivot});
}

// Puts keys into their final places: keys equal to the pivot, and small sides; larger sides are the segments of the
// next round.
__global__ void divide(const Segment* segments, int count, const int* to, const int* pivots, const int* low,
                       const int* high, Segment* next, int* created, int* sorted) {
    const int number = thread_number();
    if (number >= count) return;
    const Segment whole = segments[number];
    const Segment sides[2] = {{whole.begin, whole.begin + low[number]}, {whole.end - high[number], whole.end}};
    for (int i = sides[0].end; i < sides[1].begin; ++i) sorted[i] = pivots[number];
    for (const Segment& side : sides) {
        if (side.end - side.begin > SMALL_SEGMENT) {
            next[atomicAdd(created, 1)] = side;
            continue;
        }
        for (int i = side.begin; i < side.end; ++i) {
            int at = i;
            for (; at > side.begin && sorted[at - 1] > to[i]; --at) sorted[at] = sorted[at - 1];
            sorted[at] = to[i];
        }
    }
}

// Quadratic Bezier lines: one thread per line chooses the number of points by the curvature, one item per point.
// Coordinates and points are integers: exact up to a rounding that is the same everywhere.
constexpr int LEAST_POINTS = 4, MOST_POINTS = 2048;

struct Line {
    int x[3], y[3];
};

struct Tessellate {
    Line line;
    int last;  // number of the last point
    int* out;  // x and y of the line's points

    __device__ int at(const int* p, int i) const {
        const long long a = last - i, b = i;
        return static_cast<int>((a * a * p[0] + 2 * a * b * p[1] + b * b * p[2]) /
                                (static_cast<long long>(last) * last));
    }
    __device__ void operator()(int i) const { out[2 * i] = at(line.x, i), out[2 * i + 1] = at(line.y, i); }
};

__global__ void bezier(Control* control, const Line* lines, int count, int* created, int* out) {
    const int number = thread_number();
    if (number >= count) return;
    const Line line = lines[number];
    const int bend_x = line.x[0] - 2 * line.x[1] + line.x[2], bend_y = line.y[0] - 2 * line.y[1] + line.y[2];
    const int bend = (bend_x < 0 ? -bend_x : bend_x) + (bend_y < 0 ? -bend_y : bend_y);
    const int wanted = bend / 64, points = wanted < LEAST_POINTS  ? LEAST_POINTS
                                           : wanted > MOST_POINTS ? MOST_POINTS
                                                                  : wanted;
    created[number] = points;
    spawn::each(control, points, Tessellate{line, points - 1, out + static_cast<long long>(number) * 2 * MOST_POINTS});
}

}  // namespace works
