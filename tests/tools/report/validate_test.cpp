#include "tools/report/validate.h"
#include "data/read/library.h"
#include "tools/report/validate_rows.h"

#include <doctest/doctest.h>

#include <limits>

namespace shardplan {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr HostTolerance kTolerance = {.loss = 1e-3, .gradient_norm = 1e-3};

ValidateAnswer answer_of(const std::vector<RankResult>& ranks, const HostSteps& host) {
  ValidateAnswer answer;
  answer.case_text = R"({"schema":1,"id":"one","framework":"native","model":"llama3-8b",)"
                     R"("cluster":"1x1-h200","training":{"sequence_length":16,)"
                     R"("num_microbatches":1},"plan":{}})";
  answer.question = read_case(answer.case_text, "cases.jsonl:1", Library());
  answer.outcome = {.status = RunStatus::kOk, .ranks = ranks};
  answer.host_check = compared(host, ranks, kTolerance);
  return answer;
}

// Whether a run of two ranks, two steps each, is as the host's, whose losses are 2 and norms 3.
bool host_check_fails(const std::vector<double>& losses, const std::vector<double>& norms) {
  const std::vector<RankResult> ranks = {{.losses = losses, .gradient_norms = norms},
                                         {.losses = {1, 1}, .gradient_norms = {3, 3}}};
  const HostSteps host = {.losses = {2, 2}, .gradient_norms = {3, 3}};
  return summary_of(validate_json(answer_of(ranks, host))).host_check_failed;
}

std::string maximum_words(const RealMaximum& maximum) {
  const std::string line = validate_json(answer_of({}, {}));
  return summary_of(with_maximum(line, maximum)).maximum;
}

}  // namespace

TEST_CASE("that no size runs is said only where the smallest is out of memory") {
  RealMaximum maximum = {.axis = SizeAxis::kLayers, .next = 1, .predicted = 8};
  maximum.next_status = RunStatus::kOom;
  CHECK(maximum_words(maximum) == "no layers runs, 1: oom; predicted 8");
  maximum.next = 8;
  for (const RunStatus status : {RunStatus::kCrash, RunStatus::kTimeout, RunStatus::kInvalid}) {
    maximum.next_status = status;
    CHECK(maximum_words(maximum) ==
          "no answer for layers: 8 ended with " + std::string(name_of(status)) + "; predicted 8");
  }
  maximum.value = 7;
  CHECK(maximum_words(maximum) == "layers 7 runs, 8: invalid; predicted 8");
}

TEST_CASE("a config that cannot say which layers ran is not in the record") {
  const std::string begin =
      R"({"schema":1,"id":"one","framework":"native","model":{"model_type":"qwen3",)"
      R"("hidden_size":32,"intermediate_size":64,"num_attention_heads":4,"vocab_size":96,)"
      R"("num_key_value_heads":2,"head_dim":8,"num_hidden_layers":2)";
  const std::string end =
      R"(},"cluster":"1x1-h200","training":{"sequence_length":16,"num_microbatches":1},"plan":{}})";
  const auto line_of = [&](const std::string& more) {
    ValidateAnswer answer = {.case_text = begin + more + end, .axis = SizeAxis::kLayers};
    answer.question =
        sized_case(read_case(answer.case_text, "cases.jsonl:1", Library()), SizeAxis::kLayers, 4);
    return validate_json(answer);
  };
  CHECK(line_of("").find(R"("num_hidden_layers":4)") != std::string::npos);
  const std::string listed = line_of(R"(,"use_sliding_window":true,"sliding_window":8,)"
                                     R"("layer_types":["sliding_attention","full_attention"])");
  CHECK(listed.find(R"("num_hidden_layers")") == std::string::npos);
  CHECK(listed.find(R"("layers_changed_to":4)") != std::string::npos);
}

TEST_CASE("a loss or norm that is no number is not the host's, whatever comes after it") {
  CHECK_FALSE(host_check_fails({1, 1}, {3, 3}));
  CHECK(host_check_fails({1, 1.1}, {3, 3}));
  for (const std::size_t step : {0U, 1U}) {
    std::vector<double> losses = {1, 1};
    std::vector<double> norms = {3, 3};
    losses[step] = kNone;
    norms[step] = kNone;
    CHECK(host_check_fails(losses, {3, 3}));
    CHECK(host_check_fails({1, 1}, norms));
    CHECK(host_check_fails(losses, norms));
  }
  const RankResult none = {.losses = {kNone}, .gradient_norms = {kNone}};
  const HostSteps host_has_none = {.losses = {kNone}, .gradient_norms = {kNone}};
  CHECK(summary_of(validate_json(answer_of({none}, host_has_none))).host_check_failed);
}

TEST_CASE("a norm that is no number on one rank is none in the record") {
  const HostSteps host = {.losses = {2}, .gradient_norms = {3}};
  const RankResult good = {.losses = {1}, .gradient_norms = {3}};
  const RankResult bad = {.losses = {1}, .gradient_norms = {kNone}};
  for (const std::vector<RankResult>& ranks :
       {std::vector{bad, good}, std::vector{good, bad}, std::vector{bad, bad}}) {
    CHECK(validate_json(answer_of(ranks, host)).find(R"("gradient_norms":[null])") !=
          std::string::npos);
  }
}

}  // namespace shardplan
