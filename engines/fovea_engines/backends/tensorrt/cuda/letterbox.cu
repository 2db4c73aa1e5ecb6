// Images of different sizes, uint8 HWC RGB, into the rows of one batch: what
// fovea_preprocess/preprocessor.py does on the host, in the same arithmetic. A thread a pixel.
//
// letterbox.py compiles it for one PreprocessSpec, and defines HEIGHT, WIDTH, PAD, NHWC, BGR,
// ELEMENT, and GAINS and OFFSETS: channel value v becomes v * gain + offset.

// As `IMAGE` in letterbox.py. Positions are of pixel centres, in 2^-40 pixels of the image.
struct Image {
    long long pixels;                     // where they begin, bytes from the first Image
    long long start_x, start_y;           // position of the input's pixel (0, 0)
    long long step_x, step_y;             // from one of the input's pixels to the next
    int width, height;
    int left, top, right, bottom;         // the part of the input that shows it
    int filtered;                         // as Pillow shrinks, not as OpenCV
};

constexpr int FRACTION_BITS = 40;
constexpr long long ONE = 1LL << FRACTION_BITS;

struct Half {
    unsigned short bits;
};

// The tests compile this file for the CPU, too, and have a half_bits of their own.
#ifdef __CUDACC__
__device__ inline unsigned short half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

__device__ inline void put(unsigned char *to, float value) { *to = (unsigned char)value; }
__device__ inline void put(int *to, float value) { *to = (int)value; }
__device__ inline void put(float *to, float value) { *to = value; }
__device__ inline void put(Half *to, float value) { to->bits = half_bits(value); }

__device__ inline float in_pixels(long long length) { return (float)length / (float)ONE; }

__device__ inline int clamp(int value, int last) { return max(0, min(value, last)); }

// The two pixels beside a position and their weights in 1/2048, as OpenCV rounds them.
struct Pair {
    int first, second;
    int first_weight, second_weight;
};

__device__ inline Pair pair_at(long long position, int size) {
    const float at = in_pixels(position);
    const float whole = floorf(at);
    const float part = at - whole;
    const int first = (int)whole;
    return {clamp(first, size - 1), clamp(first + 1, size - 1),
            (int)rintf((1.0f - part) * 2048.0f), (int)rintf(part * 2048.0f)};
}

// cv2.resize, INTER_LINEAR: the bits that it drops on its way are dropped here.
__device__ inline void interpolate(const Image &image, const unsigned char *pixels,
                                   long long at_x, long long at_y, int level[3]) {
    const Pair x = pair_at(at_x, image.width), y = pair_at(at_y, image.height);
    const unsigned char *above = pixels + 3LL * y.first * image.width;
    const unsigned char *below = pixels + 3LL * y.second * image.width;
    for (int c = 0; c < 3; ++c) {
        const int upper = above[3 * x.first + c] * x.first_weight
                        + above[3 * x.second + c] * x.second_weight;
        const int lower = below[3 * x.first + c] * x.first_weight
                        + below[3 * x.second + c] * x.second_weight;
        level[c] = ((y.first_weight * (upper >> 4) >> 16)
                  + (y.second_weight * (lower >> 4) >> 16) + 2) >> 2;
    }
}

// The pixels under a triangle around a position; it is as wide as the image shrinks.
struct Window {
    long long position;
    float reach;
    int first, end;

    __device__ float weight(int pixel) const {
        const float away = fabsf(in_pixels(((long long)pixel << FRACTION_BITS) - position));
        return fmaxf(0.0f, 1.0f - away / reach);
    }
};

__device__ inline Window window_at(long long position, long long step, int size) {
    const long long reach = max(step, ONE);
    return {position, in_pixels(reach),
            clamp((int)((position - reach) >> FRACTION_BITS) + 1, size - 1),
            clamp((int)((position + reach) >> FRACTION_BITS), size - 1) + 1};
}

// Pillow's Image.resize, BILINEAR: along the rows first, whose results are rounded to bytes.
__device__ inline void filter(const Image &image, const unsigned char *pixels,
                              long long at_x, long long at_y, int level[3]) {
    const Window x = window_at(at_x, image.step_x, image.width);
    const Window y = window_at(at_y, image.step_y, image.height);
    float sum[3] = {0.0f, 0.0f, 0.0f}, weights = 0.0f;
    for (int row = y.first; row < y.end; ++row) {
        const unsigned char *line = pixels + 3LL * row * image.width;
        float row_sum[3] = {0.0f, 0.0f, 0.0f}, row_weights = 0.0f;
        for (int column = x.first; column < x.end; ++column) {
            const float weight = x.weight(column);
            row_weights += weight;
            for (int c = 0; c < 3; ++c) row_sum[c] += weight * line[3 * column + c];
        }
        const float weight = y.weight(row);
        weights += weight;
        for (int c = 0; c < 3; ++c) sum[c] += weight * floorf(row_sum[c] / row_weights + 0.5f);
    }
    for (int c = 0; c < 3; ++c) level[c] = (int)floorf(sum[c] / weights + 0.5f);
}

extern "C" __global__ void letterbox(const unsigned char *staged, ELEMENT *batch) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= WIDTH || y >= HEIGHT) return;

    const Image &image = ((const Image *)staged)[blockIdx.z];
    int level[3] = {PAD, PAD, PAD};
    if (x >= image.left && x < image.right && y >= image.top && y < image.bottom) {
        const unsigned char *pixels = staged + image.pixels;
        const long long at_x = image.start_x + x * image.step_x;
        const long long at_y = image.start_y + y * image.step_y;
        if (image.filtered) filter(image, pixels, at_x, at_y, level);
        else interpolate(image, pixels, at_x, at_y, level);
    }

    const float gain[3] = {GAINS}, offset[3] = {OFFSETS};
    ELEMENT *row = batch + 3LL * HEIGHT * WIDTH * blockIdx.z;
    for (int c = 0; c < 3; ++c) {
        const int at = NHWC ? (y * WIDTH + x) * 3 + c : (c * HEIGHT + y) * WIDTH + x;
        put(row + at, (float)level[BGR ? 2 - c : c] * gain[c] + offset[c]);
    }
}
