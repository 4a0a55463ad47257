// The time of a block piece by piece: single products, attention, memory-bound kernels,
// collectives. They are noted where a BlockTime is put together, so that they add up to it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/plan.h"

namespace shardplan {

enum class PieceKind {
  kProduct,
  kAttention,
  kElementwise,  // memory-bound kernels
  kTensorParallel,
  kContextParallel,
  kExpertParallel,
};
inline constexpr std::array<NamedValue<PieceKind>, 6> kPieceKinds = {{
    {.value = PieceKind::kProduct, .name = "product"},
    {.value = PieceKind::kAttention, .name = "attention"},
    {.value = PieceKind::kElementwise, .name = "elementwise"},
    {.value = PieceKind::kTensorParallel, .name = "tp communication"},
    {.value = PieceKind::kContextParallel, .name = "cp communication"},
    {.value = PieceKind::kExpertParallel, .name = "ep communication"},
}};
constexpr const auto& names_of(PieceKind) {
  return kPieceKinds;
}
constexpr bool is_communication(PieceKind kind) {
  return kind >= PieceKind::kTensorParallel;
}

// Seconds of one microbatch on one rank. Of communication what stays visible, and what hides behind
// compute beside it; its backward is all in backward_input_s.
struct TimedPiece {
  PieceKind kind = PieceKind::kProduct;
  std::string part = {};   // of the block: "ffn"
  std::string shape = {};  // of a product, forward: "8192x4096x14336" (rows, out, in); else empty
  double forward_s = 0;
  double backward_input_s = 0;
  double backward_weight_s = 0;
  double forward_hidden_s = 0;
  double backward_hidden_s = 0;
  double forward_flops = 0;
  bool is_measured = false;  // rests on rates measured on this GPU; else on its datasheet
};

// "ffn: product 8192x4096x14336"
inline std::string name_of(const TimedPiece& piece) {
  return piece.part + ": " + std::string(name_of(piece.kind)) +
         (piece.shape.empty() ? "" : " " + piece.shape);
}

// Where the pieces of a block are noted, in the order in which they are counted.
struct PieceLog {
  std::string part = {};  // of the block: what follows belongs to it
  std::vector<TimedPiece> pieces = {};
};

// Without recomputation; by kind of layer, as in ModelTimes.
struct ModelPieces {
  std::vector<TimedPiece> embedding;
  std::vector<TimedPiece> head;
  std::vector<TimedPiece> logits;  // the head in three, as in HeadParts
  std::vector<TimedPiece> cast;
  std::vector<TimedPiece> loss;
  std::vector<TimedPiece> mtp;  // of one module; empty: the model has none
  std::vector<std::vector<TimedPiece>> layers;
};

}  // namespace shardplan
