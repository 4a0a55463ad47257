// Evidence beside an answer: near runs, the interval they support, what no run covers.
#include "tools/accuracy/evidence.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tools/options/case_file.h"

namespace shardplan {
namespace {

Job llama_job(const Library& library, const std::string& framework) {
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework(framework);
  job.sequence_length = 8192;
  job.global_batch = 64;
  return job;
}

Evidence evidence(const Job& job, const Plan& plan, const Library& library) {
  return evidence_of(job, plan, estimate_memory(job, plan), library);
}

const SupportedInterval* interval_of(const Evidence& evidence, Quantity quantity) {
  const auto found = std::ranges::find(evidence.intervals, quantity, &SupportedInterval::quantity);
  return found == evidence.intervals.end() ? nullptr : &*found;
}

bool is_among(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

TEST_CASE("a plan that was measured is its own nearest run, and its interval holds what it took") {
  const Library library;
  CaseFile file(std::string(SHARDPLAN_SOURCE_DIR) + "/data/published/simumax_b200.jsonl");
  int num_runs = 0;
  for (CaseText line; file.next(line);) {
    const Case run = read_case(line.text, line.place(), library);
    const Evidence found = evidence(run.job, run.plan, library);
    CAPTURE(run.id);
    REQUIRE_FALSE(found.nearest.empty());
    CHECK(found.nearest.front().distance == 0);
    CHECK(found.uncovered.empty());
    CHECK(found.beyond.empty());
    const SupportedInterval* peak = interval_of(found, Quantity::kPeakAllocated);
    REQUIRE(peak != nullptr);
    CHECK(peak->num_runs <= static_cast<std::int64_t>(kNearRuns));
    std::int64_t most = 0;
    for (const MeasuredRank& rank : run.measured->ranks) {
      most = std::max(most, rank.peak_allocated.value());
    }
    CHECK(peak->low_bytes <= most + 1);
    CHECK(most - 1 <= peak->high_bytes);
    ++num_runs;
  }
  CHECK(num_runs == 43);
}

TEST_CASE("the trainer's own result lines count, those that ran out of memory do not") {
  const Library library;
  Job job = llama_job(library, "native");
  const Evidence found = evidence(job, {.tp = 2, .dp = 4, .zero = 1}, library);
  REQUIRE_FALSE(found.nearest.empty());
  CHECK(found.nearest.front().set.starts_with("native_"));
  CHECK(std::ranges::none_of(found.nearest, [](const NearRun& run) {
    return run.id.find("runs_out") != std::string::npos;
  }));
}

TEST_CASE("a size twice as large is one apart, another choice two") {
  const Library library;
  CaseFile file(std::string(SHARDPLAN_SOURCE_DIR) + "/data/published/simumax_b200.jsonl");
  CaseText line;
  REQUIRE(file.next(line));
  const Case run = read_case(line.text, line.place(), library);
  const auto nearest = [&](const Job& job) {
    return evidence(job, run.plan, library).nearest.front().distance;
  };
  Job wider = run.job;
  wider.model.vocab *= 2;  // beyond all runs, so that none comes nearer
  CHECK(nearest(wider) == doctest::Approx(1));
  Job elsewhere = run.job;
  elsewhere.cluster.gpu = library.gpu("h200");
  CHECK(nearest(elsewhere) == doctest::Approx(2));
}

TEST_CASE("what no run covers is named, features and sizes") {
  const Library library;
  Job job = llama_job(library, "megatron");
  job.cluster.gpu = library.gpu("a100-80gb");
  job.model.hidden = 32768;
  Plan plan;
  plan.tp = 2;
  plan.sequence_parallel = true;
  plan.zero = 1;
  plan.recompute = {.granularity = RecomputeGranularity::kFull};
  const Evidence found = evidence(job, plan, library);
  CHECK(found.num_runs == 43 + 63 + 11 + 14 + 18 + 15 + 5 + 3 + 8 + 15 + 15 + 29 + 11 + 14 + 10);
  CHECK_FALSE(is_among(found.uncovered, "recompute full/uniform"));
  CHECK(is_among(found.uncovered, "GPU A100-SXM-80GB"));
  CHECK_FALSE(is_among(found.uncovered, "tp > 1"));
  CHECK(is_among(found.beyond, "hidden size 32,768 (measured 512 to 16,384)"));
  job.model.hidden = 256;
  CHECK(is_among(evidence(job, plan, library).beyond, "hidden size 256 (measured 512 to 16,384)"));
}

TEST_CASE("a framework without measurements is called unmeasured") {
  const Library library;
  const Evidence found = evidence(llama_job(library, "fujii2024"), Plan{.zero = 1}, library);
  CHECK(found.num_runs == 0);
  CHECK(found.intervals.empty());
  CHECK(evidence_lines(found).front().starts_with("unmeasured"));
}

TEST_CASE("constants are told by what they rest on") {
  const Library library;
  Job job = llama_job(library, "megatron");
  const auto origins = [&] {
    std::vector<Origin> all;
    for (const ConstantRows& rows : evidence(job, Plan{.zero = 1}, library).constants) {
      all.push_back(rows.origin);
    }
    return all;
  };
  CHECK(origins() == std::vector<Origin>{Origin::kMeasured, Origin::kDocumented});
  job.cluster = library.cluster("1x8-h100");
  CHECK(origins() == std::vector<Origin>{Origin::kMeasuredElsewhere, Origin::kDocumented});
  job.profile.fixed_allocated_bytes = 1 << 20;
  CHECK(origins().front() == Origin::kFitted);
}

// data/published/known_runs.jsonl has step times only, and is not embedded.
TEST_CASE("runs whose memory was not measured are no evidence") {
  const Library embedded;
  const Library folder(std::string(SHARDPLAN_SOURCE_DIR) + "/data");
  CHECK(evidence(llama_job(folder, "megatron"), {}, folder).num_runs ==
        evidence(llama_job(embedded, "megatron"), {}, embedded).num_runs);
}

}  // namespace shardplan
