// How codes and scales become the words of a tile, and how they are had back: over the rows of
// sources.h, on either device.
#pragma once

#include "kernels.h"
#include "sources.h"
#include "tile.h"

namespace volta {

// --- Codes ---------------------------------------------------------------------------------------

// Columns of a word.
template <typename F>
VOLTA_PACK constexpr int word_columns() {
  return kBlock / (4 * F::kVecs);
}

VOLTA_PACK uint32_t put_code(Coding coding, uint32_t code, int column) {
  switch (coding) {
    case Coding::kE2M1:
      return pack_e2m1(code & 15u, column);
    case Coding::kUnsigned:
      return pack_nibble(code & 15u, column);
    case Coding::kSigned:
      return pack_byte(code ^ 0x80u, column);
    default:
      return pack_e4m3(code, column);
  }
}

VOLTA_PACK uint32_t take_code(Coding coding, uint32_t word, int column) {
  switch (coding) {
    case Coding::kE2M1:
      return unpack_e2m1(word, column);
    case Coding::kUnsigned:
      return unpack_nibble(word, column);
    case Coding::kSigned:
      return unpack_byte(word, column) ^ 0x80u;
    default:
      return unpack_e4m3(word, column);
  }
}

// Where the bits of a column of a block beyond its fourth are: bit of the block's high words.
VOLTA_PACK int high_bit(int bits, int column) {
  const int eight = column / 8, pair = column % 8 / 2, at = bits * (4 * eight + pair);
  return at / 16 * 32 + 16 * (column % 2) + at % 16;
}

// Row `row` of a tile's block from `count` codes that lie at a multiple of four bytes; columns
// beyond them are codes of zero.
template <typename F>
VOLTA_PACK void pack_codes(const uint8_t* codes, int count, uint8_t* tile, int row, int block) {
  constexpr Coding kCoding = source(F{}).coding;
  constexpr int kHigh = high_words<F>(), kColumns = word_columns<F>();
  uint32_t words[4 * F::kVecs] = {}, high[kHigh + 1] = {};
#pragma unroll
  for (int c = 0; c < kBlock; c += 4) {
    const uint32_t four = c < count ? *reinterpret_cast<const uint32_t*>(codes + c) : 0u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = four >> 8 * i & 0xffu;
      words[(c + i) / kColumns] |= put_code(kCoding, code, (c + i) % kColumns);
      if (kHigh > 0) {
        const int at = high_bit(kHigh, c + i);
        high[at / 32] |= (code >> 4 & ((1u << kHigh) - 1)) << at % 32;
      }
    }
  }
#pragma unroll
  for (int v = 0; v < F::kVecs; ++v)
    *reinterpret_cast<Vec*>(tile + codes_at<F>(row, block, v)) = {
        {words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]}};
#pragma unroll
  for (int i = 0; i < kHigh; ++i)
    *reinterpret_cast<uint32_t*>(tile + high_at<F>(row, block * kHigh + i)) = high[i];
}

template <typename F>
VOLTA_PACK void unpack_codes(const uint8_t* tile, int row, int block, uint8_t* codes, int count) {
  constexpr Coding kCoding = source(F{}).coding;
  constexpr int kHigh = high_words<F>(), kColumns = word_columns<F>();
#pragma unroll
  for (int c = 0; c < kBlock; c += 4) {
    const int word = c / kColumns;
    const uint32_t bits =
        *reinterpret_cast<const uint32_t*>(tile + codes_at<F>(row, block, word / 4) + word % 4 * 4);
    uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t code = take_code(kCoding, bits, (c + i) % kColumns);
      if (kHigh > 0) {
        const int at = high_bit(kHigh, c + i);
        const int from = high_at<F>(row, block * kHigh + at / 32);
        const uint32_t high = *reinterpret_cast<const uint32_t*>(tile + from);
        code |= (high >> at % 32 & ((1u << kHigh) - 1)) << 4;
      }
      four |= code << 8 * i;
    }
    if (c < count) *reinterpret_cast<uint32_t*>(codes + c) = four;
  }
}

// --- Scales --------------------------------------------------------------------------------------

// The arrays of a matrix; T is void or const void.
template <typename T>
struct Arrays {
  T* array[kMaxArrays];
};

// Where an element of a field is, or false where that is beyond k.
template <typename F>
VOLTA_PACK bool element_at(const Field& field, int64_t row, int64_t chunk, int64_t k,
                           int64_t* element) {
  const int columns = source(F{}).array[field.array].columns;
  const int64_t elements = (k + columns - 1) / columns;
  const int64_t at = chunk * (F::kChunk / columns) + field.index;
  *element = row * elements + at;
  return at < elements;
}

VOLTA_PACK uint32_t field_mask(const Field& field) { return ~0u >> (32 - field.bits); }

// The metadata and the tail of row `row` of a tile from row `n_row` of the matrix, or scales of
// zero where that is negative.
template <typename F>
VOLTA_PACK void pack_scales(const Arrays<const void>& arrays, int64_t n_row, int64_t chunk,
                            int64_t k, uint8_t* tile, int row) {
  uint32_t words[F::kMetaWords + 1] = {};
  for_each_field(F{}, [&](const Field& field) {
    int64_t element;
    uint32_t value = 0;
    if (n_row >= 0 && element_at<F>(field, n_row, chunk, k, &element)) {
      const void* array = arrays.array[field.array];
      const int bytes = source(F{}).array[field.array].bytes;
      value = bytes == 1   ? static_cast<const uint8_t*>(array)[element]
              : bytes == 2 ? static_cast<const uint16_t*>(array)[element]
                           : static_cast<const uint32_t*>(array)[element];
    }
    words[field.word] |= ((value >> field.from & field_mask(field)) ^ field.flip) << field.shift;
  });
#pragma unroll
  for (int i = 0; i < F::kMetaWords; ++i)
    reinterpret_cast<uint32_t*>(tile + meta_at<F>(row))[i] = words[i];
  if (F::kTail)
    *reinterpret_cast<uint16_t*>(tile + tail_at<F>(row)) =
        static_cast<uint16_t>(words[F::kMetaWords]);
}

// The arrays were zeros: an element whose bits lie in several words is put together in its place.
template <typename F>
VOLTA_PACK void unpack_scales(const uint8_t* tile, int row, const Arrays<void>& arrays,
                              int64_t n_row, int64_t chunk, int64_t k) {
  for_each_field(F{}, [&](const Field& field) {
    int64_t element;
    if (!element_at<F>(field, n_row, chunk, k, &element)) return;
    const uint32_t word =
        field.word == F::kMetaWords
            ? *reinterpret_cast<const uint16_t*>(tile + tail_at<F>(row))
            : reinterpret_cast<const uint32_t*>(tile + meta_at<F>(row))[field.word];
    const uint32_t value = ((word >> field.shift & field_mask(field)) ^ field.flip) << field.from;
    void* array = arrays.array[field.array];
    const int bytes = source(F{}).array[field.array].bytes;
    if (bytes == 1) static_cast<uint8_t*>(array)[element] |= static_cast<uint8_t>(value);
    if (bytes == 2) static_cast<uint16_t*>(array)[element] |= static_cast<uint16_t>(value);
    if (bytes == 4) static_cast<uint32_t*>(array)[element] |= value;
  });
}

// --- Whole matrices ------------------------------------------------------------------------------

VOLTA_PACK int64_t tiles_of(int64_t n) { return (n + kTileRows - 1) / kTileRows; }

template <typename F>
VOLTA_PACK int64_t chunks_of(int64_t k) {
  return (k + F::kChunk - 1) / F::kChunk;
}

// A row of a tile in a block of columns.
template <typename F>
struct Place {
  int64_t tile, chunk;
  int row, block;
};

// Of the tile, in bytes.
template <typename F>
VOLTA_PACK int64_t tile_at(const Place<F>& p, int64_t k) {
  return (p.tile * chunks_of<F>(k) + p.chunk) * tile_bytes<F>();
}

template <typename F>
VOLTA_PACK int64_t row_of(const Place<F>& p) {
  return p.tile * kTileRows + p.row;
}

template <typename F>
VOLTA_PACK int64_t column_of(const Place<F>& p) {
  return p.chunk * F::kChunk + p.block * kBlock;
}

// How many of the block's columns the matrix has in this row.
template <typename F>
VOLTA_PACK int count_of(const Place<F>& p, int64_t n, int64_t k) {
  const int64_t left = row_of(p) < n ? k - column_of(p) : 0;
  return static_cast<int>(left < 0 ? 0 : left < kBlock ? left : kBlock);
}

// What is at a place, which with the first block is the row's scales too.
template <typename F>
VOLTA_PACK void pack_place(const Place<F>& p, const uint8_t* codes,
                           const Arrays<const void>& arrays, uint8_t* data, int64_t n, int64_t k) {
  uint8_t* tile = data + tile_at(p, k);
  const int64_t row = row_of(p);
  const int count = count_of(p, n, k);
  pack_codes<F>(count ? codes + row * k + column_of(p) : codes, count, tile, p.row, p.block);
  if (p.block == 0) pack_scales<F>(arrays, row < n ? row : -1, p.chunk, k, tile, p.row);
}

template <typename F>
VOLTA_PACK void unpack_place(const Place<F>& p, const uint8_t* data, uint8_t* codes,
                             const Arrays<void>& arrays, int64_t n, int64_t k) {
  const uint8_t* tile = data + tile_at(p, k);
  const int64_t row = row_of(p);
  const int count = count_of(p, n, k);
  if (count) unpack_codes<F>(tile, p.row, p.block, codes + row * k + column_of(p), count);
  if (p.block == 0 && row < n) unpack_scales<F>(tile, p.row, arrays, row, p.chunk, k);
}

// Calls use(F{}), which gives a status, for the format, where there is one and it takes such sizes.
template <typename Use>
int with_format(int format, int64_t n, int64_t k, const Use& use) {
  switch (format) {
#define VOLTA_CASE(number, name, F)                                                        \
  case number:                                                                             \
    return n < 1 || n > kMaxSize || k < 1 || k > kMaxSize || k % source(F{}).multiple != 0 \
               ? kBadShape                                                                 \
               : use(F{});
    VOLTA_FORMATS(VOLTA_CASE)
#undef VOLTA_CASE
    default:
      return kBadFormat;
  }
}

}  // namespace volta
