// Rotary embeddings as families of models write them. Sources: transformers 5.17
// models/llama/modeling_llama.py, phi3, glm4, deepseek_v2 and deepseek_v3 beside it.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

enum class RotaryKind {
  kHalves,      // x*cos + rotate_half(x)*sin of whole heads
  kPart,        // of a part of each head, put together with the rest
  kPairs,       // the same, with cosines and sines repeated for pairs of elements (GLM-4)
  kEvenAndOdd,  // of even and odd elements apart (DeepSeek-V3)
  kComplex,     // a product of complex numbers in fp32 (DeepSeek-V2)
  kSplit,       // of both halves apart, as kEvenAndOdd, from tables of half a head (gpt-oss)
  kWideTables,  // kHalves with cosines and sines in fp32, the result cast back (OLMo 2)
  kWide,        // kHalves in fp32 (Cohere)
  kWidePairs,   // kPairs of whole heads in fp32 (ERNIE 4.5)
  kOwnPairs,    // kPairs, repeated for queries and for keys (GPT-J)
};

struct Rotary {
  eager::Tensor cosines, sines;  // kComplex: the numbers as cosines
};

// Of `elements` angles' cosines and sines; made in fp32, in `dtype` but where they are complex.
Rotary make_rotary(eager::Graph& graph, RotaryKind kind, std::int64_t elements, DType dtype);

// Whether queries and keys are cast to fp32, and both results back when both are made.
bool casts_heads(RotaryKind kind);

// What queries and keys of a layer are turned by: with kPairs and kWidePairs repeated.
Rotary of_layer(eager::Graph& graph, RotaryKind kind, const Rotary& rotary);

// By what of_layer gave. `part`: elements of the input that are turned.
eager::Tensor rotate(eager::Graph& graph, RotaryKind kind, const eager::Tensor& input,
                     std::int64_t part, const Rotary& rotary);

}  // namespace shardplan::huggingface
