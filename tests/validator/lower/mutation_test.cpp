// A test that cannot fail proves nothing: lowering with one mistake at a time, each of which the
// comparison with the estimate must notice.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <stdexcept>

#include "estimator/answer/why_invalid.h"
#include "tests/validator/layouts.h"
#include "tests/validator/lower/byte_equality.h"
#include "tests/validator/lower/mutant_builder.h"
#include "validator/lower/lower.h"

namespace shardplan {
namespace {

struct Subject {
  std::string what;
  std::int64_t world = 1;
  std::int64_t rank = 0;
  Plan plan;
  ModelSpec (*model)() = tiny_model;
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
      {"ZeRO 2 over two replicas",
       8,
       5,
       {.pp = 2, .dp_replicate = 2, .zero = 2, .schedule = Schedule::k1F1B}},
      {"ZeRO 3, tp and sp, selective recompute",
       8,
       6,
       {.tp = 2,
        .pp = 2,
        .zero = 3,
        .sequence_parallel = true,
        .recompute = selective(),
        .schedule = Schedule::k1F1B}},
      {"ZeRO 3, full recompute, interleaved",
       4,
       1,
       {.pp = 2,
        .vpp = 2,
        .zero = 3,
        .recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 2},
        .schedule = Schedule::kInterleaved1F1B}},
      {"experts over tp and sp, ep and expert tp",
       8,
       1,
       {.tp = 2,
        .ep = 2,
        .etp = 2,
        .pp = 2,
        .zero = 1,
        .sequence_parallel = true,
        .schedule = Schedule::k1F1B,
        .moe_buffer_factor = 2},
       tiny_moe},
      {"experts over tp without sp, all of it recomputed",
       4,
       2,
       {.tp = 2,
        .cp = 2,
        .ep = 4,
        .recompute = {.granularity = RecomputeGranularity::kSelective,
                      .modules = {.layernorm = true, .moe = true}},
        .cp_method = CpMethod::kAllGather},
       tiny_moe},
      {"activations of experts and of shared experts recomputed",
       4,
       3,
       {.tp = 2,
        .ep = 2,
        .zero = 1,
        .sequence_parallel = true,
        .recompute = {.granularity = RecomputeGranularity::kSelective,
                      .modules = {.moe_act = true, .shared_experts = true}}},
       tiny_moe},
      {"cp by ring, selective recompute",
       8,
       3,
       {.cp = 4,
        .pp = 2,
        .zero = 1,
        .recompute = selective(),
        .schedule = Schedule::k1F1B,
        .cp_method = CpMethod::kRing}},
      {"zero bubble, tp and sp, last of two stages",
       4,
       3,
       {.tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .schedule = Schedule::kZbH1}},
      {"zero bubble, experts with a shared one, partly recomputed",
       8,
       1,
       {.tp = 2,
        .ep = 2,
        .pp = 2,
        .sequence_parallel = true,
        .recompute = {.granularity = RecomputeGranularity::kSelective,
                      .modules = {.layernorm = true, .moe_act = true, .shared_experts = true}},
        .schedule = Schedule::kZbH1,
        .moe_buffer_factor = 2},
       tiny_moe},
      {"zero bubble, experts over a ring, no shared one",
       4,
       1,
       {.cp = 2, .ep = 2, .pp = 2, .schedule = Schedule::kZbH1, .cp_method = CpMethod::kRing},
       wide_moe},
  };
}

// What a program says about memory: bytes of every name at every operation, and where tensors lie.
// Operations of the data stream run beside the others and are left out: their place is no matter.
struct Footprint {
  std::map<std::string, std::vector<std::int64_t>> bytes;
  std::vector<std::int64_t> offsets;
  std::int64_t persistent_bytes = 0;
  std::int64_t dynamic_bytes = 0;
  friend bool operator==(const Footprint&, const Footprint&) = default;
};

Footprint footprint_of(const Program& program) {
  Footprint footprint{.bytes = {},
                      .offsets = {},
                      .persistent_bytes = program.persistent_bytes,
                      .dynamic_bytes = program.dynamic_bytes};
  std::vector<std::size_t> others;  // of every operation: how many of the others come before it
  std::size_t count = 0;
  for (const Operation& op : program.operations) {
    others.push_back(count);
    count += op.stream == Stream::kData ? 0 : 1;
  }
  others.push_back(count);
  for (const Tensor& tensor : program.tensors) {
    std::vector<std::int64_t>& bytes =
        footprint.bytes[tensor.name + " " + std::string(name_of(tensor.component))];
    bytes.resize(count, 0);
    const std::size_t end = others[static_cast<std::size_t>(tensor.dies) + 1];
    for (std::size_t i = others[static_cast<std::size_t>(tensor.born)]; i < end; ++i) {
      bytes[i] += tensor.bytes;
    }
    footprint.offsets.push_back(tensor.offset);
  }
  return footprint;
}

struct Tally {
  std::size_t subjects = 0;
  std::int64_t mutants = 0;
  std::int64_t refused = 0;  // by the builder itself
  std::int64_t equal = 0;    // the mistake changes nothing here
  std::int64_t missed = 0;
  std::set<std::string> names;
};

void hold_mutants(const Subject& subject, Tally& tally) {
  Job job = tiny_job(subject.model(), subject.world);
  job.model.layers.resize(8);
  REQUIRE_MESSAGE(!why_invalid(job, subject.plan), subject.what);
  const Program sound = lower(job, subject.plan, subject.rank, {});
  const Footprint footprint = footprint_of(sound);
  const ByteEquality equality(job, subject.plan);
  CHECK_MESSAGE(!equality.difference(sound), subject.what << ": " << *equality.difference(sound));
  const std::vector<Mutation> mutations = mutations_of(job, subject.plan, subject.rank);
  // Every third one, of every subject others: a pass repeats what it does in every layer.
  for (std::size_t i = tally.subjects++ % 3; i < mutations.size(); i += 3) {
    const Mutation& mutation = mutations[i];
    MutantBuilder builder(mutation);
    Program mutant;
    try {
      mutant = lower_with(builder, job, subject.plan, subject.rank, {});
    } catch (const std::logic_error&) {
      ++tally.refused;
      continue;
    }
    const bool is_caught = equality.difference(mutant).has_value();
    if (!is_caught && footprint_of(mutant) == footprint) {
      ++tally.equal;
      continue;
    }
    ++tally.mutants;
    tally.names.insert(mutation.name);
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
  CHECK(tally.names.size() >= 90);
  CHECK(tally.missed == 0);
}

}  // namespace shardplan
