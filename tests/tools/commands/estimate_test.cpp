// `shardplan estimate` as a user meets it.
#include <doctest/doctest.h>

#include "data/frameworks/framework.h"
#include "data/read/library.h"
#include "tests/tools/commands/answer.h"

namespace shardplan {

TEST_CASE("estimate answers with the verdict first, every component and what it rests on") {
  const ProgramRun run =
      run_in_full(estimate_words({"--micro-batch", "1", "--tp", "2", "--pp", "2", "--dp", "2"}));
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(run.out.starts_with("FITS"));
  for (const char* part :
       {"8,030,261,248 parameters", "params", "grads", "optim", "activ", "temps", "comm",
        "workspace", "context", "allocated", "reserved", "required", "device used", "peak at",
        "measured: the GPU's efficiencies", "Assumptions", "zero 1*", "tokens/s per GPU"}) {
    INFO(part);
    CHECK(contains(run.out, part));
  }
  CHECK(!contains(run.out, "\x1b["));
}

namespace {

// The assumption that begins with the name; its text and its kind.
std::pair<std::string, std::string> assumption_named(const ProgramRun& run,
                                                     const std::string& name) {
  const JsonValue answer = json_of(run);
  for (const JsonValue& assumption : at(answer, "assumptions").items) {
    if (at(assumption, "text").string.starts_with(name + ": ")) {
      return {at(assumption, "text").string, at(assumption, "kind").string};
    }
  }
  return {};
}

}  // namespace

// Megatron-LM core_v0.16.1: core/model_parallel_config.py sequence_parallel and
// cross_entropy_loss_fusion are off; training/arguments.py --use-distributed-optimizer is off.
TEST_CASE("what is assumed here is told from what the framework does by itself") {
  const ProgramRun run = run_in_full(estimate_words({"--tp", "2", "--format", "json"}));
  CHECK(
      assumption_named(run, "zero") ==
      std::pair<std::string, std::string>{"zero: 1 (assumed; default of megatron: 0)", "assumed"});
  CHECK(assumption_named(run, "sequence_parallel").second == "assumed");
  CHECK(assumption_named(run, "cross_entropy").second == "assumed");
  CHECK(assumption_named(run, "precision").second == "assumed");
  CHECK(assumption_named(run, "recompute").second == "framework_default");
  CHECK(assumption_named(run, "swiglu").second == "framework_default");
  CHECK(assumption_named(run, "moe_dispatcher").first.empty());  // a dense model
  const std::string text = run_in_full(estimate_words({"--tp", "2", "--zero", "1"})).out;
  CHECK(contains(text, "in brackets what megatron itself has: sequence_parallel: on (off),"));
  CHECK(contains(text, "defaults of megatron core_v0.16.1: schedule: none,"));
}

// Megatron-LM core_v0.16.1 training/arguments.py: --expert-tensor-parallel-size is tp where it is
// not given, --hidden-dropout and --attention-dropout are 0.1.
TEST_CASE("slices of experts and dropout are said where another choice is the framework's") {
  const auto assumed = [](const Words& more, const std::string& name) {
    Words words = {"estimate",
                   "--model",
                   "qwen3-30b-a3b",
                   "--cluster",
                   "4x8-h100",
                   "--tp",
                   "2",
                   "--ep",
                   "4",
                   "--sequence-length",
                   "4096",
                   "--global-batch",
                   "256",
                   "--format",
                   "json"};
    words.insert(words.end(), more.begin(), more.end());
    return assumption_named(run_in_full(words), name).first;
  };
  CHECK(assumed({}, "etp").starts_with("etp: 1 (assumed; default of megatron: 2"));
  CHECK(assumed({"--etp", "2"}, "etp").empty());
  CHECK(assumed({"--framework", "torchtitan"}, "etp").starts_with("etp: 1 (default of torchtitan"));
  CHECK(assumed({}, "hidden_dropout").starts_with("hidden_dropout: 0 (assumed; default of"));
  CHECK(assumed({"--framework", "torchtitan"}, "hidden_dropout").empty());
}

TEST_CASE("a step that waits for the host says what host it is taken for, others do not") {
  const auto assumed = [](const char* sequence, const char* framework, const char* cluster) {
    return assumption_named(
        run_in_full({"estimate", "--model", "llama3.2-1b", "--cluster", cluster, "--framework",
                     framework, "--micro-batch", "1", "--global-batch", "64", "--sequence-length",
                     sequence, "--format", "json"}),
        "host_slowdown");
  };
  const auto [text, kind] = assumed("1024", "megatron", "1x8-h100");
  CHECK(text.starts_with("host_slowdown: 1, "));
  CHECK(contains(text, "tools/measure_host_speed.py"));
  CHECK(kind == "estimator");
  CHECK(assumed("1024", "megatron", "1x8-a100").first.starts_with("host_slowdown: 1.4, "));
  CHECK(assumed("16384", "megatron", "1x8-h100").first.empty());
  CHECK(assumed("1024", "native", "1x8-h100").first.empty());
}

// torchtitan v0.2.2 config/job_config.py, ActivationCheckpoint: mode selective, option 2.
TEST_CASE("torchtitan recomputes every second layer unless told otherwise") {
  const Words words = {"estimate", "--model",           "llama3-8b", "--cluster",
                       "1x8-h200", "--sequence-length", "4096",      "--global-batch",
                       "16",       "--framework",       "torchtitan"};
  const auto out = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_in_full(all).out;
  };
  CHECK(contains(out({}), "recompute selective/every_second_layer*"));
  CHECK(contains(out({"--recompute", "none"}), "recompute none "));
  CHECK(contains(out({"--set", "recompute=full"}), "recompute full/uniform/1 "));
}

TEST_CASE("torchtitan on one GPU shards nothing unless told otherwise") {
  std::vector<std::string> words = {
      "estimate", "--model",       "llama3-8b", "--framework",       "torchtitan", "--cluster",
      "1x1-h100", "--gpu-memory",  "300GiB",    "--sequence-length", "2048",       "--global-batch",
      "1",        "--micro-batch", "1"};
  CHECK(run_in_full(words).out.find("zero 0*") != std::string::npos);
  words.insert(words.end(), {"--zero", "3"});
  CHECK(run_in_full(words).out.find("zero 3 on 1 GPU; valid: zero 0") != std::string::npos);
}

TEST_CASE("a plan under each ZeRO stage of DeepSpeed is answered") {
  for (const std::string zero : {"1", "2", "3"}) {
    const ProgramRun run = run_in_full({"estimate", "--model", "llama3-8b", "--cluster", "1x8-h200",
                                        "--framework", "deepspeed", "--zero", zero,
                                        "--sequence-length", "8192", "--global-batch", "16"});
    INFO(run.err);
    CHECK(run.exit_code == 0);
    CHECK(contains(run.out, "attention mask"));
  }
}

TEST_CASE("--set reaches every option of every profile") {
  const Library library;
  for (const std::string& framework : library.framework_names()) {
    Words words = {"estimate", "--model",        "llama3-8b", "--cluster",
                   "1x8-h200", "--tp",           "8",         "--framework",
                   framework,  "--format",       "json",      "--sequence-length",
                   "8192",     "--global-batch", "16"};
    for (const ProfileOption& option : profile_options(library, framework)) {
      std::string value = "1";
      if (option.type == "bool") {
        value = "true";
      } else if (!option.choices.empty()) {
        value = option.choices.back();
      }
      words.insert(words.end(), {"--set", option.name + "=" + value});
    }
    const ProgramRun run = run_in_full(words);
    CAPTURE(framework);
    INFO(run.err);
    // An answer, if only that this plan is invalid or nothing describes it.
    CHECK((run.exit_code <= 1 || (run.exit_code == 2 && !run.out.empty())));
  }
}

TEST_CASE("components of every stage sum to allocated plus outside, rows likewise") {
  const ProgramRun run =
      run_in_full(estimate_words({"--tp", "2", "--pp", "4", "--explain", "--format", "json"}));
  CHECK(run.exit_code == 0);
  const JsonValue answer = json_of(run);
  const std::vector<JsonValue>& stages = at(at(answer, "predicted"), "stages").items;
  CHECK(stages.size() == 4);
  for (const JsonValue& stage : stages) {
    std::int64_t components = 0;
    for (const auto& [name, bytes] : at(stage, "components").members) {
      components += bytes.integer;
    }
    std::int64_t inside = 0;
    std::int64_t outside = 0;
    for (const JsonValue& row : at(stage, "rows").items) {
      CHECK(at(row, "bytes").integer * at(row, "copies").integer == at(row, "total_bytes").integer);
      (at(row, "in_allocator").boolean ? inside : outside) += at(row, "total_bytes").integer;
    }
    CHECK(components == at(stage, "peak_allocated").integer + at(stage, "outside").integer);
    CHECK(inside == at(stage, "peak_allocated").integer);
    CHECK(outside == at(stage, "outside").integer);
    CHECK(at(stage, "device_used").integer ==
          at(stage, "peak_reserved").integer + at(stage, "outside").integer);
    CHECK(at(stage, "peak_moment").string == at(at(stage, "moments").items.front(), "name").string);
  }
}

TEST_CASE("the parts of the step time sum to the step time") {
  const ProgramRun run =
      run_in_full(estimate_words({"--tp", "2", "--pp", "2", "--format", "json"}));
  const JsonValue answer = json_of(run);
  const JsonValue& predicted = at(answer, "predicted");
  double sum_s = 0;
  for (const auto& [name, seconds] : at(predicted, "step_time_parts_s").members) {
    sum_s += seconds.real;
  }
  CHECK(sum_s == doctest::Approx(at(predicted, "step_time_s").real).epsilon(1e-12));
}

TEST_CASE("explained, every operation has its share of the step, and what it rests on") {
  const Words words = estimate_words({"--tp", "2", "--pp", "2", "--explain", "--format", "json"});
  const JsonValue answer = json_of(run_in_full(words));
  const JsonValue& account = at(answer, "step_account");
  double share = 0;
  for (const JsonValue& row : at(account, "rows").items) {
    share += at(row, "share").real;
    CHECK(at(row, "count").integer > 0);
    CHECK_FALSE(at(row, "basis").string.empty());
  }
  CHECK(share == doctest::Approx(1).epsilon(1e-9));
  CHECK(at(account, "total_s").real == at(at(answer, "predicted"), "step_time_s").real);
  CHECK_FALSE(at(account, "numbers").items.empty());
  for (const JsonValue& number : at(account, "numbers").items) {
    CHECK_FALSE(at(number, "origin").string.empty());
    CHECK_FALSE(at(number, "source").string.empty());
    CHECK_FALSE(at(number, "parts").items.empty());
  }
  const std::string text = run_in_full(estimate_words({"--tp", "2", "--explain"})).out;
  CHECK(text.find("\nTime of one step on the critical stage 0, ") != std::string::npos);
  CHECK(text.find("\nWhat the step rests on: ") != std::string::npos);
}

TEST_CASE("beside its limit every kind of work has what it loses, and all losses add up") {
  const Words words = {"--tp", "2", "--limit", "--format", "json"};
  const JsonValue answer = json_of(run_in_full(estimate_words(words)));
  const JsonValue& limit = at(answer, "step_limit");
  double limit_s = 0;
  double lost_s = 0;
  for (const JsonValue& row : at(limit, "rows").items) {
    limit_s += at(row, "limit_s").real;
    lost_s += at(row, "lost_s").real;
  }
  const double estimate_s = at(at(answer, "predicted"), "step_time_s").real;
  CHECK(limit_s == doctest::Approx(at(limit, "total_s").real).epsilon(1e-9));
  CHECK(limit_s + lost_s == doctest::Approx(estimate_s).epsilon(1e-9));
  CHECK(lost_s > 0);
  const std::string text = run_in_full(estimate_words({"--limit"})).out;
  CHECK(contains(text, "\nLimit of one step: "));
}

// The search of one plan, 8 GPUs at 3 US dollars, names the same days and dollars.
TEST_CASE("for tokens and a price an estimate says the days and the cost that a search says") {
  const Words cost = {"--tokens", "1e12", "--price-per-gpu-hour", "3", "--format", "json"};
  Words words = {"--tp", "2", "--zero", "1"};
  words.insert(words.end(), cost.begin(), cost.end());
  const JsonValue estimate = json_of(run_in_full(estimate_words(words)));
  const JsonValue& training = at(estimate, "training");
  const double speed = 8 * at(at(estimate, "predicted"), "tokens_per_s_per_gpu").real;
  CHECK(at(training, "usd_per_hour").real == 24);
  CHECK(at(training, "days").real == doctest::Approx(1e12 / speed / 86400));
  CHECK(at(training, "cost_usd").real == doctest::Approx(at(training, "days").real * 24 * 24));
  words = {"search",    "--model",       "llama3-8b",
           "--cluster", "1x8-h200",      "--sequence-length",
           "8192",      "--fix",         "tp=2",
           "--fix",     "pp=1",          "--fix",
           "cp=1",      "--fix",         "zero=1",
           "--range",   "micro_batch=1", "--global-batch",
           "64",        "--fix",         "sequence_parallel=on",
           "--fix",     "recompute=none"};
  words.insert(words.end(), cost.begin(), cost.end());
  words.insert(words.end(), without_overlaps().begin(), without_overlaps().end());
  const JsonValue sweep = json_of(run_in_full(words));
  const JsonValue& point = at(sweep, "clusters").items.front();
  for (const char* name : {"days", "cost_usd", "low_tokens_per_s", "high_tokens_per_s"}) {
    INFO(name);
    CHECK(at(training, name).real == at(point, name).real);
  }
}

TEST_CASE("a cost is shown where it is asked for, by the prices that are known") {
  const auto line_of = [](const Words& more) {
    const std::string out = run_in_full(estimate_words(more)).out;
    const std::size_t start = out.find("\ntraining ");
    return start == std::string::npos ? "" : out.substr(start, out.find('\n', start + 1) - start);
  };
  CHECK(line_of({}).empty());
  CHECK(contains(line_of({"--tokens", "1e12"}), "1,000,000,000,000 tokens in "));
  CHECK(!contains(line_of({"--tokens", "1e12"}), "USD"));
  CHECK(line_of({"--price-per-gpu-hour", "3"}) == "\ntraining     24.00 USD/hour");
  check_refused(run_in_full(estimate_words({"--tokens", "0"})), 2);
  const std::string csv = run_in_full(estimate_words({"--tokens", "1e12", "--format", "csv"})).out;
  CHECK(contains(csv, ",tokens,tokens_per_s,low_tokens_per_s,high_tokens_per_s,days,"));
}

// The paper's rule is of what is sold, the others of what the driver leaves: 141 GB and 139.80 GiB.
TEST_CASE("a share of the memory says of which memory it is") {
  const auto rule_of = [](const Words& more) {
    const std::string out = run_in_full(estimate_words(more)).out;
    const std::size_t start = out.find("\nrule ") + 1;
    return out.substr(start, out.find('\n', start) - start);
  };
  CHECK(contains(rule_of({"--tp", "2"}), " <= 105.05 GiB, 80 % of the nominal 141 GB"));
  CHECK(contains(rule_of({"--tp", "2", "--memory-basis", "required"}),
                 " <= 111.84 GiB, 80 % of the 139.80 GiB that the driver reports"));
  CHECK(contains(rule_of({"--tp", "2", "--gpu-memory", "100GiB"}),
                 " <= 80.00 GiB, 80 % of the 100.00 GiB that it is limited to"));
}

// All of a card may be allocated by the rule alone, not what stands outside the allocator.
TEST_CASE("find-max says whether the next size breaks the rule or the card") {
  const auto lines = [](const std::string& threshold) {
    const std::string out =
        run_in_full(estimate_words({"--tp", "2", "--find-max", "sequence_length", "--gpu-memory",
                                    "80GiB", "--memory-threshold", threshold}))
            .out;
    const std::size_t start = out.find("\nfind-max");
    return out.substr(start, out.find("\nmodel") - start);
  };
  CHECK(contains(lines("0.8"), " does not: allocated 64."));
  CHECK(contains(lines("0.8"), " is the largest that keeps the rule"));
  CHECK(contains(lines("1"), " does not: stage 0 at "));
  CHECK(!contains(lines("1"), "largest that"));
}

TEST_CASE("MFU names the peak that it is of, and explained what it is made of") {
  const auto answer = [](const std::string& precision) {
    return run_in_full(estimate_words({"--tp", "2", "--precision", precision, "--explain"})).out;
  };
  CHECK(contains(answer("bf16"), " % of the bf16 peak"));
  CHECK(contains(answer("fp8"), " % of the fp8 peak"));
  CHECK(contains(answer("bf16"), " of the 989.4 TFLOP/s of the dense bf16 peak of H200-SXM"));
  CHECK(contains(answer("fp8"), "TFLOP/s of the dense fp8 peak of H200-SXM"));
}

// Llama 3 8B has 218,112,000 parameters a layer, and 1,050,677,248 at its ends.
TEST_CASE("--set changes what the model's config.json says") {
  const auto estimate = [](const Words& more) {
    Words words = {"--tp", "2", "--format", "json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(estimate_words(words));
  };
  const JsonValue half = json_of(estimate({"--set", "num_hidden_layers=16"}));
  CHECK(at(at(half, "model"), "parameters").integer ==
        std::int64_t{16} * 218'112'000 + 1'050'677'248);
  CHECK(at(at(half, "model"), "name").string == "llama3-8b with num_hidden_layers=16");
  check_refused(estimate({"--set", "num_hidden_layers=many"}), 2);
  check_refused(estimate({"--set", "num_hidden_layers=0"}), 2);
  const ProgramRun misspelt = estimate({"--set", "num_hidden_layer=16"});
  check_refused(misspelt, 2);
  CHECK(contains(misspelt.err, "did you mean \"num_hidden_layers\"?"));
  const Words deepseek = {"estimate",
                          "--model",
                          "deepseek-v3",
                          "--cluster",
                          "256x8-h100",
                          "--sequence-length",
                          "4096",
                          "--global-batch",
                          "15360",
                          "--pp",
                          "16",
                          "--ep",
                          "64",
                          "--format",
                          "json",
                          "--set",
                          "num_nextn_predict_layers=0",
                          "--set",
                          "num_hidden_layers=64"};
  CHECK(at(at(json_of(run_in_full(deepseek)), "model"), "mtp_parameters").integer == 0);
}

TEST_CASE("a sequence longer than the model's positions is warned of, and estimated") {
  const auto estimate = [](const char* length) {
    return run_in_full({"estimate", "--model", "llama3-8b", "--cluster", "4x8-h200",
                        "--sequence-length", length, "--global-batch", "32", "--zero", "1"});
  };
  CHECK(estimate("8k").err.empty());
  const ProgramRun longer = estimate("16k");
  CHECK(longer.err ==
        "shardplan: warning: sequences of 16,384 tokens, but llama3-8b has 8,192 positions "
        "(max_position_embeddings): counted as if it had more\n");
  CHECK(contains(longer.out, "16,384 tokens per step"));
}

TEST_CASE("a GPU without measured rates has no limit") {
  const ProgramRun run =
      run_in_full({"estimate", "--model", "llama3-8b", "--cluster", "1x8-b200", "--sequence-length",
                   "8192", "--global-batch", "64", "--limit"});
  CHECK(run.exit_code == 2);
  CHECK(contains(run.err, "found no measured rates of B200-SXM-180GB"));
}

TEST_CASE("an invalid plan is a negative answer that names the rule and the numbers") {
  const ProgramRun run = run_in_full(estimate_words({"--tp", "3"}));
  CHECK(run.exit_code == 1);
  CHECK(run.err.empty());
  CHECK(num_lines(run.out) == 1);
  CHECK(run.out.starts_with("INVALID"));
  const JsonValue answer = json_of(run_in_full(estimate_words({"--tp", "3", "--format", "json"})));
  CHECK(at(at(answer, "predicted"), "status").string == "invalid");
}

TEST_CASE("microbatches whose bytes would leave 64 bits are refused, not wrapped around") {
  const ProgramRun run =
      run_in_full({"estimate", "--model", "llama3-405b", "--cluster", "2048x8-h100",
                   "--sequence-length", "128M", "--num-microbatches", "1", "--micro-batch", "1M"});
  CHECK(run.exit_code == 1);
  CHECK(run.out.starts_with("INVALID  microbatch_too_large"));
}

TEST_CASE("a plan that does not fit is a negative answer with all its numbers") {
  const ProgramRun run = run_in_full(estimate_words({"--gpu-memory", "24GiB", "--format", "json"}));
  CHECK(run.exit_code == 1);
  const JsonValue answer = json_of(run);
  const JsonValue& predicted = at(answer, "predicted");
  CHECK(at(predicted, "status").string == "does_not_fit");
  CHECK(contains(at(predicted, "reason").string, "24.00 GiB"));
  CHECK(at(predicted, "stages").items.size() == 1);
}

TEST_CASE("a default that would turn the verdict is marked, a choice of the user is not listed") {
  const Words job = {
      "estimate", "--model",        "llama3-70b", "--cluster", "2x8-h100", "--sequence-length",
      "8192",     "--global-batch", "64",         "--tp",      "8",        "--pp",
      "2",        "--gpu-memory",   "90GiB"};
  const ProgramRun run = run_in_full(job);
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out,
                 "recompute: none (default of megatron; fits with full/uniform/1)  <- decides"));
  CHECK(contains(run.out, "cross_entropy: te_fused (unfused),"));
  Words chosen = job;
  chosen.insert(chosen.end(),
                {"--recompute", "full", "--framework-option", "cross_entropy=native_fused"});
  const ProgramRun fitting = run_in_full(chosen);
  CHECK(fitting.exit_code == 0);
  CHECK(!contains(fitting.out, "recompute: "));
  CHECK(!contains(fitting.out, "cross_entropy: "));
}

TEST_CASE("a threshold that the user sets decides the verdict") {
  const Words plan = {"--tp", "2", "--pp", "2", "--memory-threshold", "0.01"};
  const ProgramRun run = run_in_full(estimate_words(plan));
  CHECK(run.exit_code == 1);
  CHECK(run.out.starts_with("OVER 1 %  "));
  CHECK(contains(run.out, "rule broken"));
}

TEST_CASE("the rule names its stage where another one is shown first") {
  const Words job = {"estimate", "--model",       "llama3-8b", "--cluster",
                     "1x8-h100", "--pp",          "4",         "--sequence-length",
                     "4096",     "--recompute",   "full",      "--global-batch",
                     "16",       "--micro-batch", "1"};
  const auto most = [&](const std::string& field) {
    Words words = job;
    words.insert(words.end(), {"--format", "json"});
    const JsonValue answer = json_of(run_in_full(words));
    std::int64_t stage = 0;
    std::int64_t bytes = 0;
    for (const JsonValue& each : at(at(answer, "predicted"), "stages").items) {
      if (at(each, field).integer > bytes) {
        bytes = at(each, field).integer;
        stage = at(each, "stage").integer;
      }
    }
    return stage;
  };
  REQUIRE(most("device_used") != most("peak_allocated"));
  const std::string out = run_in_full(job).out;
  const std::string rule =
      out.substr(out.find("rule kept"), out.find("\nmodel") - out.find("rule"));
  CHECK(contains(rule, " of stage " + std::to_string(most("peak_allocated")) + " <= "));
  Words device = job;
  device.insert(device.end(), {"--memory-basis", "device_used"});
  CHECK_FALSE(contains(run_in_full(device).out, " of stage "));
}

TEST_CASE("the largest sequence keeps the memory rule and the next one does not") {
  const Words common = {"--tp", "2", "--pp", "2", "--recompute", "full", "--format", "json"};
  Words words = common;
  words.insert(words.end(), {"--find-max", "sequence_length", "--gpu-memory", "40GiB"});
  const ProgramRun run = run_in_full(estimate_words(words));
  CHECK(run.exit_code == 0);
  const JsonValue answer = json_of(run);
  const std::int64_t most = at(at(answer, "find_max"), "value").integer;
  CHECK(at(answer, "sequence_length").integer == most);
  CHECK(at(at(answer, "find_max"), "next").integer == most + 2);
  for (const auto& [length, exit_code] : {std::pair{most, 0}, std::pair{most + 2, 1}}) {
    Words again = {"estimate",
                   "--model",
                   "llama3-8b",
                   "--cluster",
                   "1x8-h200",
                   "--sequence-length",
                   std::to_string(length),
                   "--global-batch",
                   "64",
                   "--gpu-memory",
                   "40GiB",
                   "--memory-threshold",
                   "0.8"};
    again.insert(again.end(), common.begin(), common.end());
    CHECK(run_in_full(again).exit_code == exit_code);
  }
}

// What nanotron's allocator reserves for Llama 3 8B falls by hundreds of MiB from 3 * 1024 tokens
// to 4 * 1024, and grows elsewhere.
TEST_CASE("the answer of find-max claims no more than was tried under a basis that can fall") {
  const auto line = [](const std::string& basis) {
    return run_in_full(estimate_words(
                           {"--tp", "2", "--find-max", "sequence_length", "--memory-basis", basis}))
        .out;
  };
  CHECK(contains(line("allocated"), " is the largest that keeps the rule and fits the card\n"));
  CHECK(contains(line("reserved"), " keeps the rule and fits the card\n"));
  CHECK(contains(line("reserved"), "; what the allocator reserves can fall where a size"));
  CHECK_FALSE(contains(line("reserved"), "largest that"));
}

TEST_CASE("the largest micro batch of a fixed global batch divides it") {
  Words words = {"--tp", "2", "--find-max", "micro_batch", "--format", "json"};
  const JsonValue answer = json_of(run_in_full(estimate_words(words)));
  const std::int64_t most = at(at(answer, "find_max"), "value").integer;
  CHECK(at(at(answer, "find_max"), "fits").boolean);
  CHECK(at(answer, "global_batch").integer == 64);
  CHECK(64 / 4 % most == 0);  // dp 4
  CHECK(at(answer, "micro_batch").integer == most);
}

TEST_CASE("of stages that need the same the verdict and its reason name one") {
  const ProgramRun run = run_in_full({"estimate",
                                      "--model",
                                      "kimi-k2",
                                      "--cluster",
                                      "1250x8-h100",
                                      "--sequence-length",
                                      "128k",
                                      "--global-batch",
                                      "1250",
                                      "--tp",
                                      "8",
                                      "--pp",
                                      "5",
                                      "--cp",
                                      "2",
                                      "--ep",
                                      "16",
                                      "--etp",
                                      "1",
                                      "--recompute",
                                      "full",
                                      "--recompute-method",
                                      "uniform",
                                      "--recompute-num-layers",
                                      "1",
                                      "--layers-per-chunk",
                                      "11,13,13,13,11"});
  CHECK(contains(run.out, "DOES NOT FIT  stage 2 peaks at 'start-up'"));
  CHECK(contains(run.out, "why          stage 2 at 'start-up'"));
}

TEST_CASE("a small threshold is shown as it was given") {
  CHECK(contains(run_in_full(estimate_words({"--memory-threshold", "0.0001"})).out,
                 "GiB, 0.01 % of the nominal 141 GB"));
  CHECK(contains(run_in_full(estimate_words({"--memory-threshold", "0.57"})).out,
                 "GiB, 57 % of the nominal 141 GB"));
}

}  // namespace shardplan
