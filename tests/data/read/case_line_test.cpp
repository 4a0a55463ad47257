#include <doctest/doctest.h>

#include <fstream>
#include <sstream>

#include "data/read/case_line.h"
#include "data/read/case_tuning.h"
#include "tests/data/message_of.h"

using namespace shardplan;

namespace {

std::vector<std::string> measured_lines() {
  std::ifstream file(std::string(SHARDPLAN_SOURCE_DIR) + "/data/measured/h200_frameworks.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) { lines.push_back(line); }
  return lines;
}

// A line that is right; tests change one member of it.
struct Line {
  std::string framework = R"("megatron")";
  std::string model = R"("llama3-8b")";
  std::string cluster = R"("1x8-h200")";
  std::string training = R"({"sequence_length": 8192, "global_batch": 64})";
  std::string plan = R"({"tp": 2, "pp": 2})";
  std::string more = "";

  std::string text() const {
    return R"({"schema": 1, "id": "one", "framework": )" + framework + R"(, "model": )" + model +
           R"(, "cluster": )" + cluster + R"(, "training": )" + training + R"(, "plan": )" + plan +
           more + "}";
  }
};

Case read(const Line& line) {
  return read_case(line.text(), "cases.jsonl:17", Library());
}

std::string why(const Line& line) {
  return message_of([&] { read(line); });
}
std::string why_plan(const std::string& plan) {
  return why({.plan = plan});
}
std::string why_training(const std::string& training) {
  return why({.training = training});
}

}  // namespace

TEST_CASE("every measured run is read, whether or not its framework has a profile") {
  const Library library;
  const std::vector<std::string> lines = measured_lines();
  REQUIRE(lines.size() == 80);
  std::int64_t num_ranks = 0;
  for (const std::string& line : lines) {
    const Case run = read_case(line, "h200_frameworks.jsonl:1", library);
    CAPTURE(run.id);
    CHECK(run.id == case_id_of(line));
    CHECK(run.supported == library.known_framework(run.framework));
    CHECK(run.job.cluster.gpu.id == "H200-SXM-141GB");
    CHECK(run.measured.value().status == RunStatus::kOk);
    const Plan& plan = run.plan;
    CHECK(plan.tp * plan.cp * plan.pp * plan.dp == run.job.cluster.world_size());
    CHECK(run.job.global_batch % (plan.micro_batch * plan.dp) == 0);
    for (const MeasuredRank& rank : run.measured.value().ranks) {
      ++num_ranks;
      CHECK(rank.pp_rank < plan.pp);
      CHECK(rank.peak_allocated.value() ==
            std::max(rank.peak_allocated_first_step.value(), rank.peak_allocated_steady.value()));
      CHECK(rank.device_total.value() == run.job.cluster.gpu.memory_bytes);
    }
  }
  CHECK(num_ranks == 286);
}

// Without communicators the driver's figure says less than the plan would take.
TEST_CASE("a rank that ran alone in a fake process group says nothing of the device") {
  const Library library;
  int simulated = 0;
  for (const std::string& file : library.case_files()) {
    std::istringstream lines(library.text_of(file));
    for (std::string line; std::getline(lines, line);) {
      if (line.find("simulated: torch's process group") == std::string::npos) {
        continue;
      }
      const Case run = read_case(line, file, library);
      CAPTURE(run.id);
      for (const MeasuredRank& rank : run.measured->ranks) {
        ++simulated;
        CHECK_FALSE(rank.device_used_end.has_value());
        CHECK(rank.peak_reserved.has_value());
      }
    }
  }
  CHECK(simulated == 26 + 41 + 16 + 59 + 21 + 9 + 68 + 14 + 9 + 6 + 6 + 1 + 5 + 16);
}

TEST_CASE("a measured Megatron-core run reads as it was written") {
  const std::vector<std::string> lines = measured_lines();
  const Case run = read_case(lines.at(2), "h200_frameworks.jsonl:3", Library());
  CHECK(run.id == "meg-m1_014_l32_3b_tp1pp1dp1_s8192b1n4_selective");
  CHECK(run.framework == "megatron-core-local");
  CHECK(run.framework_version == "core_v0.16.1");
  CHECK(run.job.model.hidden == 3072);
  CHECK(run.job.model.num_layers() == 28);
  CHECK(run.job.sequence_length == 8192);
  CHECK(run.job.global_batch == 4);
  CHECK(run.plan.zero == 1);
  CHECK(run.plan.schedule == Schedule::k1F1B);
  CHECK(run.plan.recompute.granularity == RecomputeGranularity::kSelective);
  CHECK(run.plan.recompute.modules == RecomputeModules{.core_attn = true});
  CHECK(run.measured.value().step_times_s == std::vector<double>{1.79486, 1.79014, 1.78983});
  CHECK(run.measured.value().ranks.at(0).peak_reserved.value() == 99'084'140'544);
}

TEST_CASE("what a line leaves out takes the profile's defaults") {
  const Case one = read({});
  CHECK(one.supported);
  CHECK(one.framework_version == "core_v0.16.1");
  CHECK(one.job.model.name == "llama3-8b");
  CHECK(one.job.cluster.name == "1x8-h200");
  CHECK(one.job.optimizer == OptimizerKind::kAdamW);
  CHECK(trained_parameters(one.job) == TrainedParameters::kAll);
  CHECK(one.plan ==
        Plan{.tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .schedule = Schedule::k1F1B});
  CHECK_FALSE(one.measured.has_value());
  CHECK(one.warnings.empty());
  const Case titan = read({.framework = R"("torchtitan")"});
  CHECK(titan.plan.recompute.granularity == RecomputeGranularity::kSelective);
  CHECK(titan.plan.recompute.policy == "every_second_layer");
  const Case none =
      read({.framework = R"("torchtitan")", .plan = R"({"recompute": {"granularity": "none"}})"});
  CHECK(none.plan.recompute == Recompute{});
}

TEST_CASE("defaults follow the degrees: no SP at tp 1, no schedule at pp 1, interleaved with vpp") {
  CHECK_FALSE(read({.plan = R"({"pp": 8})"}).plan.sequence_parallel);
  CHECK(read({.plan = "{}"}).plan.schedule == Schedule::kNone);
  CHECK(read({.plan = R"({"pp": 2, "vpp": 4})"}).plan.schedule == Schedule::kInterleaved1F1B);
  // Experts are sliced as Megatron-LM slices them.
  const std::string experts = R"("mixtral-8x7b")";
  CHECK(read({.model = experts, .plan = R"({"tp": 2})"}).plan.etp == 2);
  CHECK(read({.model = experts, .plan = R"({"tp": 2, "etp": 1})"}).plan.etp == 1);
  CHECK(read({.model = experts, .plan = R"({"tp": 2, "ep": 4})"}).plan.etp == 1);
  CHECK(read({.framework = R"("megatron-core-local")", .model = experts, .plan = R"({"tp": 2})"})
            .plan.etp == 2);
  // Given values stay, null is absent.
  const Plan plan =
      read({.plan = R"({"tp": 8, "sequence_parallel": false, "zero": 0, "schedule": null})"}).plan;
  CHECK_FALSE(plan.sequence_parallel);
  CHECK(plan.zero == 0);
  CHECK(plan.schedule == Schedule::kNone);
}

TEST_CASE("every field of a plan and of a job can be written") {
  const Case one =
      read({.training = R"({"sequence_length": 4096, "micro_batch": 2, "num_microbatches": 4,
                       "precision": "fp8", "optimizer": "sgd_momentum", "trained": "adapters"})",
            .plan = R"({"tp": 1, "cp": 2, "ep": 2, "etp": 1, "pp": 2, "vpp": 2, "dp": 2,
                   "dp_replicate": 2, "zero": 3, "sequence_parallel": true, "schedule": "zbv",
                   "recompute": {"granularity": "full", "method": "block", "num_layers": 3},
                   "layers_per_chunk": [7, 9, 8, 8], "cp_method": "a2a",
                   "rank_order": "dp-pp-tp-cp", "grad_dtype": "bf16", "master_dtype": "bf16",
                   "exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp8",
                   "offload": {"optimizer": 0.5, "activations": true, "parameters": true},
                   "moe_buffer_factor": 1.5})"});
  Plan expected = {.tp = 1, .cp = 2, .ep = 2, .etp = 1, .pp = 2, .vpp = 2, .dp = 2};
  expected.dp_replicate = 2;
  expected.zero = 3;
  expected.micro_batch = 2;
  expected.sequence_parallel = true;
  expected.recompute.granularity = RecomputeGranularity::kFull;
  expected.recompute.method = RecomputeMethod::kBlock;
  expected.recompute.num_layers = 3;
  expected.schedule = Schedule::kZbv;
  expected.layers_per_chunk = {7, 9, 8, 8};
  expected.cp_method = CpMethod::kA2a;
  expected.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kTp, Dimension::kCp};
  expected.precision = Precision::kFp8;
  expected.grad_dtype = DType::kBf16;
  expected.master_dtype = DType::kBf16;
  expected.exp_avg_dtype = DType::kFp16;
  expected.exp_avg_sq_dtype = DType::kFp8;
  expected.offload = {.optimizer = 0.5, .activations = true, .parameters = true};
  expected.moe_buffer_factor = 1.5;
  CHECK(one.plan == expected);
  CHECK(one.job.optimizer == OptimizerKind::kSgdMomentum);
  CHECK(one.job.adapters == kDefaultAdapters);
  CHECK(one.job.global_batch == 4 * 2 * 2);
}

TEST_CASE("adapters and quantization are read strictly") {
  const auto read_training = [](const std::string& tuning) {
    return read({.training = R"({"sequence_length": 4096, "num_microbatches": 1, )" + tuning + "}"})
        .job;
  };
  const Job plain = read_training(R"("adapters": null, "quantization": null)");
  CHECK(plain.adapters == Adapters{});
  CHECK(plain.quantized == QuantizedWeights{});
  Adapters expected = {.rank = 8};
  expected.targets.fill(true);
  CHECK(read_training(R"("adapters": {"rank": 8})").adapters == expected);
  CHECK(read_training(R"("adapters": {"rank": 8, "targets": "all"})").adapters == expected);
  expected.expert_targets = ExpertTargets::kAllLinear;
  CHECK(read_training(R"("adapters": {"rank": 8, "targets": "all-linear"})").adapters == expected);
  CHECK(text_of(expected) == "rank 8 on all-linear, of fp32");
  expected = {.rank = 16, .dropout = 0.05, .decomposes_weights = true, .dtype = DType::kBf16};
  expected.targets.at(static_cast<std::size_t>(LinearLayer::kQuery)) = true;
  expected.targets.at(static_cast<std::size_t>(LinearLayer::kDown)) = true;
  expected.expert_targets = ExpertTargets::kFfnNames;
  expected.trains_table = true;
  expected.trains_head = true;
  const Job job = read_training(
      R"("adapters": {"rank": 16, "targets": ["q_proj", "down_proj"], "dropout": 0.05, "dora": true,
                      "dtype": "bf16", "trains_table": true, "trains_head": true},
         "quantization": {"kind": "nf4", "double": true}, "optimizer": "paged_adamw_8bit")");
  CHECK(job.adapters == expected);
  CHECK(job.quantized == QuantizedWeights{.kind = Quantization::kNf4, .is_double = true});
  CHECK(job.optimizer == OptimizerKind::kPagedAdamW8bit);
  CHECK(read_training(R"("quantization": {"kind": "int8"})").quantized.kind == Quantization::kInt8);
  const Adapters turned = read_training(R"("adapters": {"kind": "oft", "rank": 32})").adapters;
  CHECK(turned.kind == AdapterKind::kOft);
  CHECK(text_of(turned) == "rotations in blocks of 32 on all linear layers, of fp32");
  const auto message = [&](const std::string& tuning) {
    return message_of([&] { read_training(tuning); });
  };
  CHECK(message(R"("adapters": {"kind": "boft", "rank": 32})")
            .find("expected lora, oft, adalora or bottleneck") != std::string::npos);
  CHECK(message(R"("adapters": {"rank": 8}, "trained": "all")").find("/training/trained: found") !=
        std::string::npos);
  CHECK(message(R"("adapters": {"rank": 0})").find("/training/adapters/rank: found integer 0") !=
        std::string::npos);
  CHECK(message(R"("adapters": {"targets": "all"})").find("rank") != std::string::npos);
  CHECK(message(R"("adapters": {"rank": 8, "targets": []})").find("found an array") !=
        std::string::npos);
  CHECK(
      message(R"("adapters": {"rank": 8, "targets": ["q_prj"]})").find("did you mean \"q_proj\"") !=
      std::string::npos);
  CHECK(message(R"("adapters": {"rank": 8, "dtype": "int32"})").find("expected fp32, bf16") !=
        std::string::npos);
  CHECK(message(R"("adapters": {"rank": 8, "alpha": 16})").find("alpha") != std::string::npos);
  CHECK(message(R"("quantization": {"kind": "none"})").find("expected nf4, fp4 or int8") !=
        std::string::npos);
  CHECK(message(R"("quantization": {"kind": "int8", "double": true})").find("found true") !=
        std::string::npos);
}

TEST_CASE("recomputed modules and policies are read by name") {
  const Recompute modules =
      read(
          {.plan = R"({"recompute": {"granularity": "selective", "modules": ["mlp", "moe_act"]}})"})
          .plan.recompute;
  CHECK(modules.modules == RecomputeModules{.mlp = true, .moe_act = true});
  const Recompute policy =
      read({.plan = R"({"recompute": {"granularity": "selective", "policy": "every_second"}})"})
          .plan.recompute;
  CHECK(policy.policy == "every_second");
}

TEST_CASE("microbatches and global batch give one another and must agree") {
  // 8 GPUs, tp 2 x pp 2: two data-parallel ranks.
  CHECK(read({.training = R"({"sequence_length": 1, "num_microbatches": 3, "micro_batch": 5})"})
            .job.global_batch == 30);
  CHECK(read({.training = R"({"sequence_length": 1, "num_microbatches": 3, "global_batch": 6})"})
            .job.global_batch == 6);
  CHECK(why_training(R"({"sequence_length": 1, "num_microbatches": 4, "global_batch": 64})") ==
        "cases.jsonl:17: /training/global_batch: found 64, expected 8: num_microbatches 4 x "
        "micro_batch 1 x dp 2");
  CHECK(why_training(R"({"sequence_length": 1})") ==
        "cases.jsonl:17: /training: found neither \"num_microbatches\" nor \"global_batch\", "
        "expected one");
}

TEST_CASE("every word that a table has is read as its own value") {
  for (const ScheduleRow& row : kSchedules) {
    const std::string plan = R"({"pp": 2, "schedule": ")" + std::string(row.name) + "\"}";
    CHECK(read({.plan = plan}).plan.schedule == row.value);
  }
  for (const auto& [method, name] : kCpMethods) {
    const std::string plan = R"({"cp_method": ")" + std::string(name) + "\"}";
    CHECK(read({.plan = plan}).plan.cp_method == method);
  }
  for (const auto& [precision, name] : kPrecisions) {
    const std::string training =
        R"({"sequence_length": 1, "global_batch": 1, "precision": ")" + std::string(name) + "\"}";
    CHECK(read({.training = training}).plan.precision == precision);
  }
  for (const auto& [module, name] : kRecomputeModules) {
    const std::string plan =
        R"({"recompute": {"granularity": "selective", "modules": [")" + std::string(name) + "\"]}}";
    CHECK(read({.plan = plan}).plan.recompute.modules.*module);
  }
  for (const auto& [status, name] : kRunStatuses) {
    const std::string measured = R"(, "measured": {"status": ")" + std::string(name) + "\"}";
    CHECK(read({.more = measured}).measured.value().status == status);
  }
  CHECK(read({.more = R"(, "measured": {"status": "ok", "memory_grade": "B"})"})
            .measured.value()
            .memory_grade == "B");
}

TEST_CASE("a given dp is kept for the rules to judge") {
  CHECK(read({.plan = R"({"tp": 2, "dp": 3})"}).plan.dp == 3);
  CHECK(read({.plan = R"({"tp": 3})"}).plan.dp == 0);
}

TEST_CASE("options of a line reach the profile") {
  const Case one = read({.more = R"(, "options": {"overlap_grad_reduce": true,
                                     "overlap_param_gather": true, "eager_communicators": true})"});
  CHECK(one.job.profile.overlap_grad_reduce);
  CHECK(one.job.profile.eager_communicators);
  CHECK(why({.more = R"(, "options": {"swiglu": 1}")"}) != "no error");
  CHECK(why({.more = R"(, "options": {"swiglu": 1})"}) ==
        "cases.jsonl:17: /options/swiglu: found integer 1, expected one of fused, unfused");
  // Without a profile nobody knows the options, but they are still an object.
  CHECK(why({.framework = R"("other-trainer")", .more = R"(, "options": {"compile": true})"}) ==
        "no error");
  CHECK(why({.framework = R"("other-trainer")", .more = R"(, "options": 3)"}) ==
        "cases.jsonl:17: /options: found integer 3, expected an object");
}

TEST_CASE("another version of a framework is a warning") {
  const Case one = read({.more = R"(, "framework_version": "core_v0.15.0")"});
  CHECK(one.warnings == std::vector<std::string>{"framework_version: found \"core_v0.15.0\", the "
                                                 "profile describes core_v0.16.1"});
}

TEST_CASE("model and cluster can be files") {
  const std::string data = std::string(SHARDPLAN_SOURCE_DIR) + "/data/";
  const Case one = read({.model = R"({"file": ")" + data + R"(models/llama3-8b.json"})",
                         .cluster = R"({"file": ")" + data + R"(clusters/aws-p5.json"})"});
  CHECK(one.job.model.name == "llama3-8b");
  CHECK(one.job.cluster.gpu.id == "H100-SXM-80GB");
  CHECK(why({.model = R"({"file": "nowhere"})"}) ==
        "cases.jsonl:17: /model: ./nowhere: found no readable file, expected one: No such file or "
        "directory");
  CHECK(why({.cluster = R"({"file": "nowhere.json"})"}) ==
        "cases.jsonl:17: /cluster: nowhere.json: found no readable file, expected one: No such "
        "file or directory");
  CHECK(why({.cluster = R"({"file": "c.json", "gpu": "h200"})"}) ==
        "cases.jsonl:17: /cluster/gpu: found an unknown key, expected a known one");
}

TEST_CASE("a line of results can be read again") {
  CHECK(why({.more = R"(, "predicted": {"status": "fits"})"}) == "no error");
}

TEST_CASE("wrong plans are refused with line, field, found and expected") {
  const std::string at = "cases.jsonl:17: /plan/";
  CHECK(why_plan(R"({"tp": 0})") ==
        at + "tp: found integer 0, expected an integer from 1 to 1048576");
  CHECK(why_plan(R"({"tp": 2.0})") ==
        at + "tp: found number 2, expected an integer from 1 to 1048576");
  CHECK(why_plan(R"({"tp": "2"})") ==
        at + "tp: found string \"2\", expected an integer from 1 to 1048576");
  CHECK(why_plan(R"({"zero": 4})") ==
        at + "zero: found integer 4, expected an integer from 0 to 3");
  CHECK(why_plan(R"({"schedule": "1f1c"})") ==
        at +
            "schedule: found \"1f1c\", expected one of none, gpipe, 1f1b, interleaved_1f1b, zb_h1, "
            "interleaved_zero_bubble, zbv; did you mean \"1f1b\"?");
  CHECK(why_plan(R"({"tpp": 2})") ==
        at + "tpp: found an unknown key, expected a known one (did you mean \"tp\"?)");
  CHECK(why_plan(R"({"grad_dtype": "float"})") ==
        at + "grad_dtype: found \"float\", expected a dtype: fp32, bf16, fp16 or fp8");
  CHECK(why_plan(R"({"sequence_parallel": 1})") ==
        at + "sequence_parallel: found integer 1, expected true or false");
  CHECK(why_plan(R"({"layers_per_chunk": [16, -1]})") ==
        at + "layers_per_chunk/1: found integer -1, expected an integer from 0 to 1048576");
  CHECK(why_plan(R"({"layers_per_chunk": 16})") ==
        at + "layers_per_chunk: found integer 16, expected an array of layer counts");
  CHECK(why_plan(R"({"offload": {"optimizer": 2}})") ==
        at + "offload/optimizer: found integer 2, expected a number from 0 to 1");
  CHECK(why_plan(R"({"moe_buffer_factor": 0})") ==
        at + "moe_buffer_factor: found integer 0, expected a number from 0.01 to 1024");
  CHECK(why_plan("[]") == "cases.jsonl:17: /plan: found an array of 0, expected an object");
}

TEST_CASE("a rank order names each of the four dimensions once") {
  for (const char* order : {"pp-dp-cp", "pp-dp-cp-tp-ep", "pp-dp-tp-tp", "pp-dp-cp-tp-", "tp", "",
                            "pp dp cp tp", "pp-dp--tp"}) {
    CAPTURE(order);
    CHECK(why_plan(R"({"rank_order": ")" + std::string(order) + "\"}") ==
          "cases.jsonl:17: /plan/rank_order: found \"" + std::string(order) +
              "\", expected pp, dp, cp and tp once each, slowest to fastest, as in pp-dp-cp-tp");
  }
}

TEST_CASE("a recompute choice that contradicts itself is refused") {
  const std::string at = "cases.jsonl:17: /plan/recompute";
  const auto recompute = [](const std::string& text) {
    return why_plan(R"({"recompute": )" + text + "}");
  };
  CHECK(recompute("{}") == at + "/granularity: found nothing, expected a string");
  CHECK(recompute(R"({"granularity": "none", "method": "block"})") ==
        at + "/method: found an unknown key, expected a known one");
  CHECK(recompute(R"({"granularity": "selective"})") ==
        at + ": found granularity selective with both or neither of \"modules\" and \"policy\", "
             "expected one of them");
  CHECK(recompute(R"({"granularity": "selective", "modules": ["mpl"]})") ==
        at + "/modules: found \"mpl\", expected some of core_attn, layernorm, mlp, moe_act, "
             "mla_up_proj, moe, shared_experts; did you mean \"mlp\"?");
  CHECK(recompute(R"({"granularity": "full", "num_layers": 0})") ==
        at + "/num_layers: found integer 0, expected an integer from 1 to 1048576");
}

TEST_CASE("wrong training members are refused") {
  const std::string at = "cases.jsonl:17: /training";
  CHECK(why_training(R"({"global_batch": 8})") ==
        at + "/sequence_length: found nothing, expected an integer from 1 to 1073741824");
  CHECK(why_training(R"({"sequence_length": 8192, "global_batch": 8, "precision": "tf32"})") ==
        at + "/precision: found \"tf32\", expected one of fp32, bf16, fp16, fp8; did you mean "
             "\"fp32\"?");
  CHECK(why_training(R"({"sequence_length": 1048576, "micro_batch": 1025, "global_batch": 1})") ==
        at + "/micro_batch: found 1025 sequences of 1048576 tokens, expected at most 1073741824 "
             "tokens in a microbatch");
  CHECK(why_training(R"({"sequence_length": 1, "global_batch": 8, "optimizer": "adam"})") ==
        at +
            "/optimizer: found \"adam\", expected one of adamw, sgd_momentum, muon, "
            "dist_muon, sgd, adafactor, adamw_8bit, paged_adamw, paged_adamw_8bit, "
            "torchao_adamw_8bit, torchao_adamw_4bit, lion, paged_lion, lion_8bit, "
            "paged_lion_8bit, galore, apollo, adam_mini, badam, muonclip; did you mean \"adamw\"?");
}

TEST_CASE("wrong lines are refused where they are wrong") {
  const std::string at = "cases.jsonl:17: ";
  CHECK(why({.framework = "7"}) == at + "/framework: found integer 7, expected a string");
  CHECK(why({.model = R"("lama3-8b")"}) ==
        at +
            "/model: found \"lama3-8b\", which is not shipped, and nothing is downloaded; expected "
            "a name that `shardplan list models` has or the path of a config.json; did you mean "
            "\"llama3-8b\"?");
  CHECK(why({.model = R"({"name": "mine", "layers_changed_to": 4})"})
            .starts_with(at + "/model/layers_changed_to: found integer 4: this run went on in the "
                              "model's pattern of layers, which its config.json cannot say; "));
  CHECK(why({.cluster = R"("0x8-h200")"}) ==
        at + "/cluster: found 0 nodes, expected an integer from 1 to 131072");
  CHECK(why({.cluster = R"({"gpu": "h2OO"})"})
            .starts_with(at + "/cluster/gpu: found GPU \"h2OO\", expected one that "
                              "`shardplan list gpus` has, "));
  CHECK(why({.more = R"(, "plans": {})"}) ==
        at + "/plans: found an unknown key, expected a known one (did you mean \"plan\"?)");
  CHECK(why({.more = R"(, "id": "two")"}) ==
        at + "found key \"id\" twice (first on line 17), expected every key once");
  CHECK(message_of([] { read_case(R"({"schema": 2, "id": "x"})", "f:3", Library()); }) ==
        "f:3: /schema: found integer 2, expected 1");
  CHECK(message_of([] { read_case("", "f:3", Library()); }) ==
        "f:3: found an empty text, expected JSON");
  CHECK(message_of([] { read_case("[]", "f", Library()); }) ==
        "f:1: found an array of 0, expected an object");
}

TEST_CASE("wrong measurements are refused") {
  const std::string at = "cases.jsonl:17: /measured";
  const auto measured = [](const std::string& text) {
    return why({.more = R"(, "measured": )" + text});
  };
  CHECK(measured(R"({"status": "oom"})") == "no error");
  CHECK(measured(R"({"status": "fine"})")
            .starts_with(at + "/status: found \"fine\", expected one of ok, oom, "));
  CHECK(measured(R"({"status": "ok", "step_times_s": [1, 0]})") ==
        at + "/step_times_s/1: found integer 0, expected seconds above 0");
  CHECK(measured(R"({"status": "ok", "ranks": [{"rank": 0}]})") ==
        at + "/ranks/0/pp_rank: found nothing, expected an integer from 0 to 1048576");
  CHECK(measured(R"({"status": "ok", "memory_grade": "D"})") ==
        at + "/memory_grade: found \"D\", expected A, B or C");
  CHECK(measured(R"({"status": "ok", "ranks": {}})") ==
        at + "/ranks: found an object of 0, expected an array");
  CHECK(measured(R"({"status": "ok", "ranks": [{"rank": 0, "pp_rank": 0, "peak": 1}]})") ==
        at + "/ranks/0/peak: found an unknown key, expected a known one");
}

TEST_CASE("the id of a broken line is found if it is there") {
  CHECK(case_id_of(R"({"schema": 1, "id": "a-1", "model)") == "a-1");
  CHECK(case_id_of(R"({"id" : "b"})") == "b");
  CHECK(case_id_of(R"({"id": 7})").empty());
  CHECK(case_id_of(R"({"id": "cut)").empty());
  CHECK(case_id_of(R"({"id": "a\"b"})").empty());
  CHECK(case_id_of(R"({"id":)").empty());
  CHECK(case_id_of("").empty());
}
