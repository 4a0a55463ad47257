// What the row tables of the frameworks are built with. Letters as in the formulas:
//   h hidden, f FFN width, a d query heads and head dimension, k kv heads, V padded vocabulary,
//   t tp, c cp, T = s*b/c tokens of a microbatch on one rank, u = T/t under sequence parallelism
//   (else T), E topk fe experts, experts per token and their width.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "estimator/ledger/block_memory.h"

namespace shardplan {

// Tensors in the native trainer's arenas start and end at multiples of this many bytes.
inline constexpr std::int64_t kNativeAlignment = 256;

// Sizes that every row table needs, of one rank.
struct BlockShape {
  std::int64_t hidden = 0;
  std::int64_t tokens = 0;           // T
  std::int64_t sharded_tokens = 0;   // u
  std::int64_t query_width = 0;      // a*d/t
  std::int64_t key_value_width = 0;  // k*d/t of keys alone, at least one head
  std::int64_t query_heads = 0;      // a/t
  std::int64_t key_value_heads = 0;
  std::int64_t local_vocab = 0;   // V/t
  std::int64_t ffn_pieces = 0;    // 2 with a gate
  DType dtype = DType::kBf16;     // of activations
  bool gathers_sequence = false;  // tp > 1 with sequence parallelism
  bool delayed_weight = false;    // weight gradients wait for their own step
};
BlockShape block_shape(const Job& job, const Plan& plan);
DType activation_dtype(Precision precision);

// elements * share rounded up, with share taken to six decimals.
std::int64_t scaled(std::int64_t elements, double share);

struct Life {
  Step born = Step::kForwardInput;
  Step last_forward_use = Step::kForwardInput;
  Step dies = Step::kForwardInput;
};

// Collects rows; bytes = elements * size of the dtype, rounded up to `alignment`. What they return
// is the row, good until the next one is added.
class RowList {
 public:
  explicit RowList(std::int64_t alignment) : alignment_(alignment) {
    constexpr std::size_t kManyRows = 128;  // room for most blocks
    rows.reserve(kManyRows);
  }

  // Saved by forward for backward.
  BlockRow& keep(std::string_view name, std::int64_t elements, DType dtype, Life life,
                 std::string_view formula);
  // Lives within forward or within backward.
  BlockRow& use(std::string_view name, std::int64_t elements, DType dtype, Step born, Step dies,
                std::string_view formula);
  // Made by the first step that gets here, and counted by the state.
  void make_once(std::string_view name, std::int64_t elements, DType dtype, Step born,
                 std::string_view formula);
  // Dropped in forward and computed again in backward, from `replayed` on.
  void recompute(std::string_view name, std::int64_t elements, DType dtype, Life life,
                 Step replayed, std::string_view formula);
  // As use, in another component than temporaries.
  BlockRow& use_as(Component component, std::string_view name, std::int64_t elements, DType dtype,
                   Step born, Step dies, std::string_view formula);

  // The last row stands for tensors of these elements, which together are its own.
  void split_last(std::span<const std::int64_t> elements);
  void split_last(std::initializer_list<std::int64_t> elements) {
    split_last(std::span(elements.begin(), elements.size()));
  }

  // The last row stands for tensors of these elements that follow each other: what the replay of
  // the allocator sees in its place.
  void pass_last(std::span<const PassingTensor> elements);
  void pass_last(std::initializer_list<PassingTensor> elements) {
    pass_last(std::span(elements.begin(), elements.size()));
  }

  std::vector<BlockRow> rows;
  bool follow_load = false;  // rows added from now on, if they do not say otherwise

 private:
  BlockRow& add(Component component, std::string_view name, std::int64_t elements, DType dtype,
                Life life, std::string_view formula);

  std::int64_t alignment_;
  BlockRow without_elements_;  // not a row
};

}  // namespace shardplan
