#include "tools/options/tuning_words.h"
#include "data/read/case_tuning.h"
#include "tests/data/message_of.h"
#include "tests/tools/commands/answer.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

Job tuned(const Words& words, Job job = {}) {
  apply_tuning(job, parse_options("estimate", words));
  return job;
}

std::string refused(const Words& words) {
  return message_of([&] { tuned(words); });
}

}  // namespace

TEST_CASE("adapters are those of the options, over those of the run") {
  CHECK(tuned({}).adapters == Adapters{});
  Adapters expected = {.rank = 16, .targets = all_targets().on, .dropout = 0.05};
  const Job job = tuned({"--lora-rank", "16", "--lora-dropout", "0.05"});
  CHECK(job.adapters == expected);
  CHECK(text_of(job.adapters) == "rank 16 on all linear layers, dropout 0.05, of fp32");
  expected.targets = targets_named({"q_proj", "v_proj"}).on;
  expected.dtype = DType::kBf16;
  const Job fewer = tuned({"--lora-targets", "q_proj,v_proj", "--lora-dtype", "bf16"}, job);
  CHECK(fewer.adapters == expected);
  CHECK(text_of(fewer.adapters) == "rank 16 on q_proj,v_proj, dropout 0.05, of bf16");
  CHECK(tuned({"--lora-rank", "0"}, fewer).adapters == Adapters{});
  CHECK(contains(refused({"--lora-targets", "all"}), "--lora-targets: found no adapters"));
  CHECK(contains(refused({"--lora-rank", "8", "--lora-targets", "q_proj,o_prj"}),
                 "--lora-targets: found 'o_prj', expected all, all-linear or some of"));
  CHECK(contains(refused({"--lora-rank", "8", "--lora-dropout", "2"}), "--lora-dropout"));
}

TEST_CASE("one word says what is trained") {
  const Job lora = tuned({"--tune", "lora"});
  CHECK(lora.adapters == Adapters{.rank = 16, .targets = all_targets().on});
  CHECK(lora.quantized == QuantizedWeights{});
  const Job qlora = tuned({"--tune", "qlora", "--lora-rank", "4", "--lora-targets", "q_proj"});
  CHECK(qlora.adapters == Adapters{.rank = 4, .targets = targets_named({"q_proj"}).on});
  CHECK(qlora.quantized == QuantizedWeights{.kind = Quantization::kNf4, .is_double = true});
  const Job full = tuned({"--tune", "full"}, qlora);
  CHECK(full.adapters == Adapters{});
  CHECK(full.quantized == QuantizedWeights{});
}

TEST_CASE("an expression over names says which parameters are trained") {
  const Job job = tuned({"--train-only", "lm_head|layers\\.1\\."});
  CHECK(text_of(job.name_rules) == "frozen: all, then trained: lm_head|layers\\.1\\.");
  CHECK(tuned({}, job).name_rules == job.name_rules);
  CHECK(tuned({"--tune", "full"}, job).name_rules.empty());
  CHECK(contains(refused({"--train-only", "layers.[0"}),
                 "--train-only: found 'layers.[0', expected a regular expression"));
}

TEST_CASE("quantized scales are of weights of 4 bits") {
  CHECK(tuned({"--quantize", "nf4", "--double-quantize"}).quantized ==
        QuantizedWeights{.kind = Quantization::kNf4, .is_double = true});
  CHECK(tuned({"--quantize", "int8"}).quantized.kind == Quantization::kInt8);
  Job run;
  run.quantized.kind = Quantization::kFp4;
  CHECK(tuned({"--double-quantize"}, run).quantized.is_double);
  CHECK(tuned({"--quantize", "none"}, run).quantized == QuantizedWeights{});
  CHECK(contains(refused({"--double-quantize"}), "--double-quantize: found no weights of 4 bits"));
  CHECK(contains(refused({"--quantize", "int8", "--double-quantize"}), "expected --quantize nf4"));
}

TEST_CASE("answers say what is trained in the words of case lines") {
  const ProgramRun run = run_in_full({"estimate",
                                      "--model",
                                      "llama3.2-1b",
                                      "--cluster",
                                      "1x1-h100",
                                      "--framework",
                                      "transformers",
                                      "--sequence-length",
                                      "512",
                                      "--num-microbatches",
                                      "1",
                                      "--lora-rank",
                                      "16",
                                      "--lora-targets",
                                      "q_proj,v_proj",
                                      "--quantize",
                                      "nf4",
                                      "--double-quantize",
                                      "--format",
                                      "json"});
  CHECK(contains(run.out, R"("adapters":{"rank":16,"targets":["q_proj","v_proj"],"dropout":0.0,)"
                          R"("dora":false,"dtype":"fp32","trains_table":false,)"
                          R"("trains_head":false},"quantization":{"kind":"nf4","double":true})"));
}

}  // namespace shardplan
