// What measurements say about an answer: the nearest runs of the same framework and how far off the
// estimate is for them, what of the plan no run covers, which of its bytes are constants.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/frameworks/framework.h"
#include "data/read/case_line.h"
#include "tools/accuracy/accuracy.h"

namespace shardplan {

// One measured run beside a plan.
struct NearRun {
  std::string set;
  std::string id;
  // Sum over sizes (hidden, FFN, layers, vocabulary, tokens of a microbatch on a rank, tp, pp, vpp,
  // cp, ep, dp, experts) of |log2(one / other)|, and 1 for every other feature that only one of
  // them has (plan_features without sizes; the GPU). So one size twice as large is 1, another
  // choice, as of ZeRO stage or GPU, 2.
  double distance = 0;
  BytesPairs worst;  // predicted and measured, of the worst rank
};

// The errors of the near runs applied to a prediction: measured = predicted / (1 + error).
struct SupportedInterval {
  Quantity quantity = Quantity::kPeakAllocated;
  std::int64_t num_runs = 0;  // near runs that measured it
  double least_error = 0;     // never above 0
  double most_error = 0;      // never below 0
  std::int64_t low_bytes = 0;
  std::int64_t high_bytes = 0;
};

// Bytes of the fullest stage that are constants, by what they rest on.
struct ConstantRows {
  Origin origin = Origin::kCounted;
  std::int64_t bytes = 0;
  std::vector<std::string> rows;
};

// Measured runs of the framework that left as much of their card as the plan does, within 5 % of
// the card: by the driver where they lived, by the estimate where they died.
struct NearCard {
  std::int64_t lived = 0;
  std::int64_t died = 0;  // out of memory
  std::int64_t runs() const { return lived + died; }
};

struct Evidence {
  std::int64_t num_runs = 0;  // of the framework, that its profile can predict
  NearCard near_card;
  std::vector<NearRun> nearest;
  std::vector<SupportedInterval> intervals;
  std::vector<std::string> uncovered;  // features that no run has
  std::vector<std::string> beyond;     // sizes outside those of all runs
  std::vector<ConstantRows> constants;
  bool rates_measured = false;  // else the GPU's and the network's rates are from datasheets
};

inline constexpr std::size_t kNearRuns = 5;
inline constexpr double kFarthest = 16;  // beyond, a run says nothing

struct KnownRun;

// The measured runs of a framework that its profile can predict, read once.
class MeasuredRuns {
 public:
  // The library must outlive it.
  MeasuredRuns(const FrameworkProfile& profile, const Library& library);
  ~MeasuredRuns();
  MeasuredRuns(const MeasuredRuns&) = delete;
  MeasuredRuns& operator=(const MeasuredRuns&) = delete;

  Evidence evidence_of(const Job& job, const Plan& plan, const MemoryEstimate& memory) const;
  // Whether some run has each of the plan's features, and its sizes lie among those of the runs.
  bool cover(const Job& job, const Plan& plan) const;
  // How many of them are so.
  std::int64_t count(const std::function<bool(const Job& job, const Plan& plan)>& is_so) const;

 private:
  const Library& library_;
  std::vector<ProfileOption> options_;
  std::vector<KnownRun> runs_;  // those that died, too
};

Evidence evidence_of(const Job& job, const Plan& plan, const MemoryEstimate& memory,
                     const Library& library);

// "1 of 12 measured megatron runs this near to their card died".
std::string near_card_words(const Evidence& evidence, const std::string& framework);

// Lines of a list for people.
std::vector<std::string> evidence_lines(const Evidence& evidence);

}  // namespace shardplan
