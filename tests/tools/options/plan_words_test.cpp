#include "tools/options/plan_words.h"
#include "tools/options/search_axes.h"

#include <doctest/doctest.h>

#include <sstream>

namespace shardplan {
namespace {

// Splits at spaces as a shell does with words that need no quotes.
std::vector<std::string> words_of_line(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) { words.push_back(word); }
  return words;
}

Plan parsed(const std::string& line) {
  std::vector<std::string> given_fields;
  return plan_of(parse_options("estimate", words_of_line(line)), given_fields);
}

// A plan in which no field has the value of a new Plan.
Plan unusual_plan() {
  Plan plan = {.tp = 2, .cp = 4, .ep = 8, .etp = 16, .pp = 3, .vpp = 2, .dp = 5};
  plan.dp_replicate = 5;
  plan.zero = 3;
  plan.micro_batch = 7;
  plan.sequence_parallel = true;
  plan.recompute = {.granularity = RecomputeGranularity::kFull,
                    .method = RecomputeMethod::kBlock,
                    .num_layers = 9};
  plan.schedule = Schedule::kInterleaved1F1B;
  plan.layers_per_chunk = {1, 2, 3, 4, 5, 6};
  plan.cp_method = CpMethod::kA2a;
  plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kTp, Dimension::kCp};
  plan.precision = Precision::kFp8;
  plan.grad_dtype = DType::kBf16;
  plan.master_dtype = DType::kFp16;
  plan.exp_avg_dtype = DType::kFp8;
  plan.exp_avg_sq_dtype = DType::kBf16;
  plan.offload.optimizer = 0.3;
  plan.moe_buffer_factor = 1.25;
  return plan;
}

}  // namespace

TEST_CASE("a plan written as options reads back equal") {
  CHECK(parsed(options_of_plan(unusual_plan())) == unusual_plan());
  CHECK(parsed(options_of_plan(Plan{})) == Plan{});
  Plan selective;
  selective.recompute.granularity = RecomputeGranularity::kSelective;
  selective.recompute.modules = {.layernorm = true, .mlp = true};
  CHECK(parsed(options_of_plan(selective)) == selective);
  for (const std::string_view policy : kRecomputePolicies) {
    selective.recompute = {.granularity = RecomputeGranularity::kSelective,
                           .policy = std::string(policy)};
    CHECK(parsed(options_of_plan(selective)) == selective);
  }
}

TEST_CASE("the options that differ are those that a change needs") {
  Plan base;
  Plan plan = base;
  CHECK(options_that_differ(base, plan).empty());
  plan.tp = 2;
  plan.sequence_parallel = true;
  CHECK(options_that_differ(base, plan) == "--tp 2 --sequence-parallel on");
  base = unusual_plan();
  plan = base;
  plan.recompute = {};
  plan.layers_per_chunk.clear();
  plan.cp = 1;
  CHECK(options_that_differ(base, plan) == "--cp 1 --recompute none --layers-per-chunk even");
}

TEST_CASE("the fields that the user gave are named as in case lines") {
  std::vector<std::string> given_fields;
  plan_of(parse_options("estimate", {"--dp-replicate", "2", "--sequence-parallel", "off", "--model",
                                     "x", "--explain"}),
          given_fields);
  CHECK(given_fields == std::vector<std::string>{"dp_replicate", "sequence_parallel"});
}

TEST_CASE("recompute options without their granularity are refused") {
  CHECK_THROWS_AS(parsed("--recompute-num-layers 2"), InputError);
  CHECK_THROWS_AS(parsed("--recompute selective --recompute-method block"), InputError);
  CHECK_THROWS_AS(parsed("--recompute full --recompute-modules mlp"), InputError);
  CHECK_THROWS_AS(parsed("--recompute selective --recompute-modules mpl"), InputError);
  CHECK_THROWS_AS(parsed("--recompute full --recompute-policy every_second_layer"), InputError);
  CHECK_THROWS_AS(
      parsed("--recompute selective --recompute-modules mlp --recompute-policy every_second_layer"),
      InputError);
}

TEST_CASE("selective recomputation names modules or a policy") {
  CHECK(recompute_text(
            parsed("--recompute selective --recompute-policy every_second_layer").recompute) ==
        "selective/every_second_layer");
  CHECK(recompute_text(parsed("--recompute selective --recompute-modules mlp,moe_act").recompute) ==
        "selective/mlp+moe_act");
}

TEST_CASE("a rank order names every dimension once") {
  CHECK(dimensions_text(parse_rank_order("dp,pp,cp,tp", "x")) == "dp-pp-cp-tp");
  CHECK(dimensions_text(parse_rank_order("dp-pp-cp-tp", "x")) == "dp-pp-cp-tp");
  for (const char* word : {"dp,pp,cp", "dp,pp,cp,cp", "dp,pp,cp,tp,tp", "dp,pp,cp,ep", ""}) {
    INFO(word);
    CHECK_THROWS_AS(parse_rank_order(word, "x"), InputError);
  }
}

TEST_CASE("--fix leaves one value, --range a part of the axis or exactly the values") {
  SearchSpace space;
  space.tp = {1, 2, 4, 8, 16};
  space.pp = {1, 2, 3};
  fix_axis(space, "pp=12");
  CHECK(space.pp == std::vector<std::int64_t>{12});
  restrict_axis(space, "tp=2..8");
  CHECK(space.tp == std::vector<std::int64_t>{2, 4, 8});
  restrict_axis(space, "tp=3,5");
  CHECK(space.tp == std::vector<std::int64_t>{3, 5});
  restrict_axis(space, "dp=2..4");  // empty before: whatever follows
  CHECK(space.dp == std::vector<std::int64_t>{2, 3, 4});
  fix_axis(space, "micro-batch=4");
  CHECK(space.micro_batch == std::vector<std::int64_t>{4});
}

TEST_CASE("axes of words take words") {
  SearchSpace space;
  space.recompute = {{}, {.granularity = RecomputeGranularity::kFull}};
  fix_axis(space, "recompute=full");
  CHECK(space.recompute.size() == 1);
  CHECK(recompute_text(space.recompute.front()) == "full/uniform/1");
  fix_axis(space, "sequence_parallel=on");
  CHECK(space.sequence_parallel == std::vector<bool>{true});
  restrict_axis(space, "schedule=1f1b,zbv");
  CHECK(space.schedule == std::vector<Schedule>{Schedule::k1F1B, Schedule::kZbv});
  fix_axis(space, "grad_dtype=bf16");
  CHECK(space.grad_dtype == std::vector<DType>{DType::kBf16});
  fix_axis(space, "rank_order=dp,pp,cp,tp");
  CHECK(dimensions_text(space.rank_order.front()) == "dp-pp-cp-tp");
}

TEST_CASE("axes and values that do not exist are refused") {
  SearchSpace space;
  space.tp = {1, 2};
  for (const char* word : {"tp", "tp=", "=8", "tpp=8", "tp=0", "tp=-1", "tp=x", "zero=4",
                           "schedule=fast", "rank_order=tp", "sequence_parallel=yes"}) {
    INFO(word);
    CHECK_THROWS_AS(fix_axis(space, word), InputError);
  }
  for (const char* word : {"tp=3..4", "tp=..4", "tp=2..", "tp=4..2", "schedule=a..b", "tp=1,,2"}) {
    INFO(word);
    CHECK_THROWS_AS(restrict_axis(space, word), InputError);
  }
}

}  // namespace shardplan
