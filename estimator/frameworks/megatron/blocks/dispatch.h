// Rows of tokens that a Megatron layer sends to its experts and back.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Buffers of token rows on their way to the experts and back; each is [rows, h].
struct Dispatch {
  std::int64_t local = 0;       // rows permuted on this rank: u*topk, or capacity*E
  std::int64_t received = 0;    // after the all-to-all over ep: local * I
  std::int64_t gathered = 0;    // after the gather over etp
  std::int64_t padded = 0;      // what the experts work on: fp8 products want whole groups of rows
  std::int64_t all_tokens = 0;  // all-gather: tokens of every rank over ep and etp
  std::int64_t once = 0;        // DeepEP: tokens of every rank that chose an expert of this one
  bool sorts = false;           // more than one expert on this rank
};

// Experts that take turns, each with its own linear layers (SequentialMLP); one pair of grouped
// products else.
std::int64_t expert_turns(const MegatronBlock& block);

Dispatch dispatch_of(const MegatronBlock& block);
// Of both directions, and what goes into the experts and comes out.
void add_token_dispatch(MegatronBlock& block, const Dispatch& dispatch, bool recomputed);

}  // namespace shardplan::megatron
