// The table of bench_training: its cases, and results written and read again.
#include "tools/bench/training_table.h"
#include "estimator/answer/step_limit.h"
#include "estimator/estimate.h"
#include "tools/report/training.h"
#include "validator/lower/lower.h"

#include <doctest/doctest.h>

#include <set>

namespace shardplan {
namespace {

std::int64_t device_used_bytes(const Case& one) {
  std::int64_t most = 0;
  for (const StageMemory& stage : estimate_memory(one.job, one.plan).stages) {
    most = std::max(most, stage.device_used_bytes);
  }
  return most;
}

TrainingResult some_result(const Library& library) {
  const TrainingCase one = training_cases(1, "h200").front();
  TrainingResult result = {.question = read_case(one.line, "table", library), .line = one.line};
  result.goal = one.goal;
  result.steps_s = {0.80, 0.76, 0.78, 0.75, 0.77, 0.79, 0.74, 0.73, 0.72, 0.71, 0.70};
  result.sensors = {.sm_clock_mhz = 1425, .power_w = 693.5, .samples = 300};
  result.limit_s = 0.72;
  result.roofline_s = 0.735;
  result.sustained_flops_per_s = 693.7e12;
  result.losses = {{.kind = "product", .measured_s = 0.55, .limit_s = 0.54},
                   {.kind = "waiting for the host", .measured_s = 0.01}};
  return result;
}

}  // namespace

TEST_CASE("every case of the table runs on as many GPUs, fits, and has a limit") {
  const Library library;
  std::set<std::string> ids;
  for (const std::int64_t gpus : {1, 2, 4, 8}) {
    for (const TrainingCase& row : training_cases(gpus, "H200-SXM-141GB")) {
      const Case one = read_case(row.line, "table", library);
      CAPTURE(one.id);
      CHECK(ids.insert(one.id).second);
      CHECK(one.job.cluster.world_size() == gpus);
      CHECK(one.job.sequence_length == 8192);
      CHECK_FALSE(why_invalid(one.job, one.plan).has_value());
      CHECK_FALSE(why_not_lowered(one.job, one.plan).has_value());
      CHECK(device_used_bytes(one) < one.job.cluster.gpu.memory_bytes * 19 / 20);
      CHECK(num_microbatches(one.job, one.plan) >= (one.plan.pp > 1 ? 4 * one.plan.pp : 1));
      CHECK(without_losses(one.job).has_value());
      CHECK(row.goal.must <= row.goal.aim);
    }
  }
  CHECK(ids.size() == 1 + 7 + 10 + 15);
  CHECK(training_cases(3, "h200").empty());
}

TEST_CASE("a result is a case line that is read again as it was written") {
  const Library library;
  const TrainingResult result = some_result(library);
  const std::string line = training_json(result, {.command = "bench_training", .machine = "H200"});
  const Case as_case = read_case(line, "out", library);
  CHECK(as_case.measured->step_times_s == result.steps_s);
  CHECK(*as_case.measured->tokens_per_s_per_gpu == doctest::Approx(2 * 8192 / 0.75));
  const auto again = training_result(line, "out", library);
  REQUIRE(again.has_value());
  CHECK(again->question.id == result.question.id);
  CHECK(again->limit_s == result.limit_s);
  CHECK(again->goal.must == 22400);
  CHECK(again->sensors.power_w == 693.5);
  CHECK(table_text(training_table({*again})) == table_text(training_table({result})));
  CHECK(losses_text(*again) == losses_text(result));
  CHECK_FALSE(training_result(result.line, "in", library).has_value());
  std::string damaged = line;
  damaged.replace(damaged.find("\"measured_s\""), 12, "\"measured_t\"");
  CHECK_THROWS_AS(training_result(damaged, "out:1", library), InputError);
}

TEST_CASE("a failed run keeps its place in the table with its reason") {
  const Library library;
  TrainingResult result = some_result(library);
  result.steps_s.clear();
  result.failure = "out of memory";
  result.out_of_memory = true;
  const auto again = training_result(training_json(result, {}), "out", library);
  CHECK(again->out_of_memory);
  const Table table = training_table({*again});
  CHECK(std::get<std::string>(table.rows.at(0).at(2)) == "out of memory");
  CHECK(table.rows.at(0).size() == table.columns.size());
}

TEST_CASE("the table has the median, the spread, the shares and what was reached") {
  const Library library;
  const Table table = training_table({some_result(library)});
  const std::vector<Cell>& row = table.rows.at(0);
  const auto at = [&](const std::string& column) {
    const auto found = std::ranges::find(table.columns, column);
    return row.at(static_cast<std::size_t>(found - table.columns.begin()));
  };
  CHECK(std::get<std::int64_t>(at("tokens/s/GPU")) == 21845);
  CHECK(std::get<std::int64_t>(at("p10")) == 20739);  // the slow steps' speed: 0.79 s
  CHECK(std::get<std::int64_t>(at("p90")) == 23076);
  CHECK(std::get<std::string>(at("roofline %")) == "98.0");
  CHECK(std::get<std::string>(at("limit %")) == "96.0");
  CHECK(std::get<std::int64_t>(at("limit")) == 22756);
  CHECK(std::get<std::string>(at("reached")) == "no");
}

TEST_CASE("a percentile is a value that was measured") {
  CHECK(percentile({3, 1, 2}, 0.5) == 2);
  CHECK(percentile({3, 1, 2}, 0) == 1);
  CHECK(percentile({3, 1, 2}, 1) == 3);
  CHECK(percentile({7}, 0.9) == 7);
}

}  // namespace shardplan
