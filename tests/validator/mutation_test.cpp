// A test that cannot fail proves nothing: lowering with one mistake at a time, each of which the
// comparison with the estimate must notice.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "estimator/validity.h"
#include "tests/validator/byte_equality.h"
#include "tests/validator/layouts.h"
#include "tests/validator/mutant_builder.h"
#include "validator/lower.h"

namespace shardplan {
namespace {

struct Subject {
  std::string what;
  std::int64_t world = 1;
  std::int64_t rank = 0;
  Plan plan;
};

Recompute selective() {
  return {.granularity = RecomputeGranularity::kSelective,
          .modules = {.core_attn = true, .layernorm = true, .mlp = true}};
}

// Every pass with rows of its own in the estimate.
std::vector<Subject> subjects() {
  return {
      {"tp and sp, first of two stages",
       4,
       0,
       {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = Schedule::k1F1B}},
      {"tp and sp, last of two stages",
       4,
       3,
       {.tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .schedule = Schedule::k1F1B}},
      {"tp without sp, selective recompute, GPipe",
       4,
       2,
       {.tp = 2, .pp = 2, .recompute = selective(), .schedule = Schedule::kGpipe}},
      {"cp by all-gather, selective recompute",
       4,
       1,
       {.cp = 2,
        .pp = 2,
        .zero = 1,
        .recompute = selective(),
        .schedule = Schedule::k1F1B,
        .cp_method = CpMethod::kAllGather}},
      {"full recompute in pairs, interleaved",
       4,
       2,
       {.pp = 2,
        .vpp = 2,
        .zero = 1,
        .recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 2},
        .schedule = Schedule::kInterleaved1F1B}},
  };
}

// What the tables say about memory.
bool same_memory(const Program& a, const Program& b) {
  const auto same = [](const Tensor& x, const Tensor& y) {
    return x.name == y.name && x.component == y.component && x.bytes == y.bytes &&
           x.born == y.born && x.dies == y.dies && x.offset == y.offset;
  };
  return a.persistent_bytes == b.persistent_bytes && a.dynamic_bytes == b.dynamic_bytes &&
         std::ranges::equal(a.tensors, b.tensors, same);
}

struct Tally {
  std::int64_t mutants = 0;
  std::int64_t refused = 0;  // by the builder itself
  std::int64_t equal = 0;    // the mistake changes nothing here
  std::int64_t missed = 0;
  std::set<std::string> names;
};

void hold_mutants(const Subject& subject, Tally& tally) {
  Job job = tiny_job(tiny_model(), subject.world);
  job.model.layers.resize(8);
  REQUIRE_MESSAGE(!why_invalid(job, subject.plan), subject.what);
  const Program sound = lower(job, subject.plan, subject.rank, {});
  const ByteEquality equality(job, subject.plan);
  CHECK_MESSAGE(!equality.difference(sound), subject.what << ": " << *equality.difference(sound));
  for (const Mutation& mutation : mutations_of(job, subject.plan, subject.rank)) {
    MutantBuilder builder(mutation);
    Program mutant;
    try {
      mutant = lower_with(builder, job, subject.plan, subject.rank, {});
    } catch (const std::logic_error&) {
      ++tally.refused;
      continue;
    }
    if (same_memory(sound, mutant)) {
      ++tally.equal;
      continue;
    }
    ++tally.mutants;
    tally.names.insert(mutation.name);
    const bool is_caught = equality.difference(mutant).has_value();
    tally.missed += is_caught ? 0 : 1;
    CHECK_MESSAGE(is_caught, subject.what << ", not caught: " << mutation.text());
  }
}

}  // namespace

TEST_CASE("the comparison with the estimate notices every mistake of a pass about memory") {
  Tally tally;
  for (const Subject& subject : subjects()) { hold_mutants(subject, tally); }
  MESSAGE(tally.mutants << " mutants of " << tally.names.size() << " names, " << tally.missed
                        << " missed; " << tally.refused << " refused by the builder, "
                        << tally.equal << " without an effect");
  CHECK(tally.mutants >= 500);
  CHECK(tally.missed == 0);
}

}  // namespace shardplan
