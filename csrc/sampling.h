// Logits [rows][vocab], what is done to them, and tokens drawn from them; vocab at most 2^20.
//
// Logits are FP32, or FP16 on CUDA alone (half = 1); whole, they start at a multiple of 16 bytes.
// Everything a request sets is an array of one entry per row, read when the kernel runs. A request
// that lasts over many batches has a slot; row_slots[row] names it, and a number outside
// [0, slots) is nobody's, whose row is left alone.
#pragma once

#include <cstdint>

extern "C" {

// In place: what a slot's prompt or output holds is divided by `repetition` where its logit is
// positive and multiplied where not; then count * frequency is taken off, and `presence` where the
// count is not zero. counts are [slots][vocab] of output tokens, prompt [slots][vocab] of 0 or 1.
int volta_apply_penalties_cpu(void* logits, int half, const int32_t* counts, const uint8_t* prompt,
                              const int32_t* row_slots, const float* repetition,
                              const float* frequency, const float* presence, int64_t rows,
                              int64_t vocab, int64_t slots, int threads);

// counts[row_slots[row]][tokens[row]] += 1; tokens outside the vocabulary count nowhere.
int volta_count_tokens_cpu(int32_t* counts, const int32_t* row_slots, const int64_t* tokens,
                           int64_t rows, int64_t vocab, int64_t slots, int threads);

// logits[row][ids[row][i]] += values[row][i] for i < n; ids outside the vocabulary (-1) are unused,
// the others of a row differ.
int volta_apply_bias_cpu(void* logits, int half, const int32_t* ids, const float* values,
                         int64_t rows, int64_t vocab, int64_t n, int threads);

// Logits whose bit is clear become -inf: bit t % 32 of allowed[row][t / 32], ceil(vocab / 32) words
// a row.
int volta_apply_mask_cpu(void* logits, int half, const int32_t* allowed, int64_t rows,
                         int64_t vocab, int threads);

// A token per row, and its log-softmax of the logits as given, before temperature and cuts.
int volta_sample_cpu(const void* logits, int half, const float* temperature, const int32_t* top_k,
                     const float* top_p, const float* min_p, const int64_t* seeds,
                     const int64_t* steps, int64_t* tokens, float* logprobs, int64_t rows,
                     int64_t vocab, int threads);

// The n largest of a row's log-softmax, ties by lower index: values and ids [rows][n]; n is at most
// vocab.
int volta_top_logprobs_cpu(const void* logits, int half, float* values, int64_t* ids, int64_t rows,
                           int64_t vocab, int64_t n, int threads);

// values[row][i] = log-softmax of logits[row] at ids[row][i], NaN for ids outside the vocabulary.
int volta_token_logprobs_cpu(const void* logits, int half, const int64_t* ids, float* values,
                             int64_t rows, int64_t vocab, int64_t n, int threads);

int volta_apply_penalties_cuda(void* logits, int half, const int32_t* counts, const uint8_t* prompt,
                               const int32_t* row_slots, const float* repetition,
                               const float* frequency, const float* presence, int64_t rows,
                               int64_t vocab, int64_t slots, cudaStream_t stream);
int volta_count_tokens_cuda(int32_t* counts, const int32_t* row_slots, const int64_t* tokens,
                            int64_t rows, int64_t vocab, int64_t slots, cudaStream_t stream);
int volta_apply_bias_cuda(void* logits, int half, const int32_t* ids, const float* values,
                          int64_t rows, int64_t vocab, int64_t n, cudaStream_t stream);
int volta_apply_mask_cuda(void* logits, int half, const int32_t* allowed, int64_t rows,
                          int64_t vocab, cudaStream_t stream);
int volta_sample_cuda(const void* logits, int half, const float* temperature, const int32_t* top_k,
                      const float* top_p, const float* min_p, const int64_t* seeds,
                      const int64_t* steps, int64_t* tokens, float* logprobs, int64_t rows,
                      int64_t vocab, cudaStream_t stream);
int volta_top_logprobs_cuda(const void* logits, int half, float* values, int64_t* ids, int64_t rows,
                            int64_t vocab, int64_t n, cudaStream_t stream);
int volta_token_logprobs_cuda(const void* logits, int half, const int64_t* ids, float* values,
                              int64_t rows, int64_t vocab, int64_t n, cudaStream_t stream);

}  // extern "C"
