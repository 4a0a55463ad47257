// What a framework's options decide, in words that all frameworks share: questions of rooms that
// know no option, which each framework answers from options of its own.
#pragma once

#include <cstdint>

namespace shardplan {

struct FrameworkProfile;
struct Job;

// Ends of a model that count as a layer where layers are dealt to stages: 1 or 0.
struct CountedEnds {
  std::int64_t embedding = 0;
  std::int64_t head = 0;
};

// Rows of tokens that ranks get for their experts, over the mean.
struct ExpertRows {
  double imbalance = 1;  // of the busiest rank
  double spread = 0;     // standard deviation between layers and microbatches, at least
  double capacity = 0;   // > 0: most rows of an expert, to which all are padded; 0: no bound
};

enum class TpOverlap {
  kExposed,   // collectives stand between the linears
  kBackward,  // those of input gradients and gathered inputs beside the products of backward
  kPieces,    // all in pieces of the tokens, each beside the products of another piece
};

enum class CpOverlap {
  kExposed,
  kAttention,  // a hop runs beside the attention to the keys of the one before
  kSequences,  // likewise; gradients, to which calls of every sequence add, beside one sequence's
};

// What the exchanges of experts' rows run beside.
enum class ExchangeOverlap {
  kExposed,
  kSharedExperts,  // shared experts of the same tokens
  kMicrobatches,   // the layer's work for another microbatch, in the other direction
};

// What communication runs beside work.
struct Overlaps {
  TpOverlap tp = TpOverlap::kExposed;
  CpOverlap cp = CpOverlap::kExposed;
  ExchangeOverlap exchanges = ExchangeOverlap::kExposed;
  bool sends = false;          // to other stages, beside the work of other chunks
  bool gathers = false;        // of parameters, beside a forward pass
  bool reductions = false;     // of gradients, beside a backward pass
  std::int64_t tp_pieces = 1;  // of the tokens (TpOverlap::kPieces)
};

// Each has its values in estimator/frameworks/NAME/choices.h. FrameworkProfile and
// allowed_overlaps (job.h) ask them.
struct FrameworkChoices {
  // Ends that count as layers; none: neither.
  CountedEnds (*counted_ends)(const FrameworkProfile& profile) = nullptr;
  // Where blocks are dealt by cost (FrameworkLayout): whether a stage that has just its share is
  // full, and all behind the layers lies on the last one; none: it lies where its cost leaves it.
  bool (*puts_ends_last)(const FrameworkProfile& profile) = nullptr;
  // Microbatches that a chunk of an interleaved schedule runs in a row; 0, or none: what the
  // schedule takes by default.
  std::int64_t (*microbatch_group)(const FrameworkProfile& profile) = nullptr;
  // Whether actions of a schedule gather parameters for one pass of a block, not for a whole step
  // (FrameworkLayout::gathers_for_pipeline); none: never.
  bool (*reshards_forward)(const FrameworkProfile& profile) = nullptr;
  // Whether a stage keeps outputs that it has sent; none: never.
  bool (*keeps_sent_outputs)(const FrameworkProfile& profile) = nullptr;
  // Whether hosts launch compiled layers, not eager ones (HostTables); none: never.
  bool (*launches_compiled)(const FrameworkProfile& profile) = nullptr;
  // None: even ones, as far as chance does not vary them.
  ExpertRows (*expert_rows)(const FrameworkProfile& profile) = nullptr;
  // None: nothing runs beside anything.
  Overlaps (*overlaps)(const Job& job) = nullptr;
};

// What the profile's framework answers, or what none means.
template <class Answer>
Answer answer_of(Answer (*question)(const FrameworkProfile&), const FrameworkProfile& profile) {
  return question != nullptr ? question(profile) : Answer{};
}

}  // namespace shardplan
