#include "validator/program/initial_tensors.h"

#include <utility>

namespace shardplan {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): a full-period mixing of a counter.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

double initial_value(const std::string& tensor, std::int64_t index, std::uint64_t seed) {
  std::uint64_t key = mixed(seed);
  for (const char letter : tensor) { key = mixed(key ^ static_cast<unsigned char>(letter)); }
  const double uniform =
      static_cast<double>(mixed(key ^ static_cast<std::uint64_t>(index)) >> 11) * 0x1p-53;
  const bool is_norm = tensor.ends_with("norm");
  return is_norm ? 1 + 0.2 * (uniform - 0.5) : 0.4 * (uniform - 0.5);
}

Tensors initial_tensors(const ModelSpec& model, std::uint64_t seed) {
  Tensors tensors;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    Matrix matrix = zeros(rows, cols);
    for (std::size_t i = 0; i < matrix.values.size(); ++i) {
      matrix.values[i] = initial_value(name, static_cast<std::int64_t>(i), seed);
    }
    tensors[name] = std::move(matrix);
  };
  const auto add_ffn = [&](const std::string& name, std::int64_t width) {
    add(name + "gate", model.hidden, width);
    add(name + "up", model.hidden, width);
    add(name + "down", width, model.hidden);
  };
  const std::int64_t query = model.num_heads * model.head_dim;
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  add("embedding", model.vocab, model.hidden);
  add("final_norm", 1, model.hidden);
  if (!model.tied_embeddings) {
    add("head", model.hidden, model.vocab);
  }
  for (std::int64_t index = 0; index < model.num_layers(); ++index) {
    const std::string layer = "layers." + std::to_string(index) + ".";
    add(layer + "attention.norm", 1, model.hidden);
    add(layer + "attention.q", model.hidden, query);
    add(layer + "attention.k", model.hidden, key);
    add(layer + "attention.v", model.hidden, key);
    add(layer + "attention.o", query, model.hidden);
    add(layer + "ffn.norm", 1, model.hidden);
    if (!model.layers[static_cast<std::size_t>(index)].is_moe) {
      add_ffn(layer + "ffn.", model.ffn);
      continue;
    }
    add(layer + "router", model.hidden, model.moe.num_experts);
    for (std::int64_t e = 0; e < model.moe.num_experts; ++e) {
      add_ffn(layer + "experts." + std::to_string(e) + ".", model.moe.expert_ffn);
    }
    if (model.moe.shared_ffn > 0) {
      add_ffn(layer + "shared.", model.moe.shared_ffn);
    }
  }
  return tensors;
}

}  // namespace shardplan
