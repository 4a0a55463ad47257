// Objectives of a Trainer's run other than the next token.
#include <doctest/doctest.h>

#include "tests/data/arguments/trainer_reading.h"

namespace shardplan {
namespace {

using enum TrainerProject;

Objective objective_of(TrainerProject project, const TrainerWords& words) {
  const RunReading run = read_trainer_run(project, words);
  CHECK(run.unsupported.empty());
  return run.job.profile.objective;
}

bool is_refused(const RunReading& run, const char* reason) {
  return run.unsupported.find(reason) != std::string::npos;
}

TrainerWords with(TrainerWords words, const char* name, const char* value) {
  words.push_back({name, value});
  return words;
}

const TrainerWords kLora = {
    {"adapter", "lora"}, {"lora_target_linear", "true"}, {"lora_dropout", "0.05"}};

}  // namespace

TEST_CASE("axolotl's rl says which preferences are trained") {
  CHECK(objective_of(kAxolotl, with(kLora, "rl", "dpo")) == Objective::kDpo);
  CHECK(objective_of(kAxolotl, with(kLora, "rl", "ipo")) == Objective::kDpo);
  CHECK(objective_of(kAxolotl, with(kLora, "rl", "kto")) == Objective::kKto);
  CHECK(objective_of(kAxolotl, with(kLora, "rl", "orpo")) == Objective::kOrpo);
  CHECK(objective_of(kAxolotl, with(kLora, "rl", "simpo")) == Objective::kSimpo);
  CHECK(objective_of(kAxolotl, kLora) == Objective::kNextToken);
}

TEST_CASE("LLaMA-Factory's stage says it, and its loss whether there is a reference") {
  for (const auto& [words, objective] :
       {std::pair{TrainerWords{{"stage", "dpo"}}, Objective::kDpo},
        std::pair{TrainerWords{{"stage", "dpo"}, {"pref_loss", "orpo"}}, Objective::kOrpo},
        std::pair{TrainerWords{{"stage", "dpo"}, {"pref_loss", "simpo"}}, Objective::kSimpo},
        std::pair{TrainerWords{{"stage", "dpo"}, {"pref_loss", "hinge"}}, Objective::kDpo},
        std::pair{TrainerWords{{"stage", "kto"}}, Objective::kKto},
        std::pair{TrainerWords{{"stage", "rm"}}, Objective::kReward}}) {
    const RunReading run = read_trainer_run(kFactory, with(words, "finetuning_type", "lora"));
    CHECK(run.unsupported.empty());
    CHECK(run.job.profile.objective == objective);
    CHECK(run.job.profile.objective_trainer == ObjectiveTrainer::kFactory);
  }
  CHECK(is_refused(read_trainer_run(kFactory, {{"stage", "ppo"}}), "stage ppo: another training"));
}

TEST_CASE("a reward model of axolotl has one label, a process reward model two") {
  const RunReading reward = read_trainer_run(kAxolotl, {{"reward_model", "true"}});
  CHECK(reward.job.profile.objective == Objective::kReward);
  CHECK(reward.job.profile.num_labels == 1);
  const RunReading process = read_trainer_run(kAxolotl, {{"process_reward_model", "true"}});
  CHECK(process.job.profile.objective == Objective::kTokenLabels);
  CHECK(process.job.profile.num_labels == 2);
  CHECK(read_trainer_run(kAxolotl, {{"process_reward_model", "true"}, {"num_labels", "3"}})
            .job.profile.num_labels == 3);
  CHECK(is_refused(read_trainer_run(kAxolotl, {{"num_labels", "2"}}), "num_labels 2 without"));
}

// Of two pairs there are four sequences; KTO and process reward models have single texts.
TEST_CASE("a sample of a pair is two sequences") {
  const auto sequences = [](const TrainerWords& words) {
    return read_trainer_run(kAxolotl, with(words, "micro_batch_size", "2")).plan.micro_batch;
  };
  CHECK(sequences(with(kLora, "rl", "dpo")) == 4);
  CHECK(sequences({{"reward_model", "true"}}) == 4);
  CHECK(sequences(with(kLora, "rl", "kto")) == 2);
  CHECK(sequences({{"process_reward_model", "true"}}) == 2);
  CHECK(sequences(kLora) == 2);
  const RunReading run = read_trainer_run(
      kAxolotl, with(with(with(kLora, "rl", "dpo"), "micro_batch_size", "2"), "batch_size", "8"));
  CHECK(run.job.global_batch == 4 * run.plan.dp * 4);
  CHECK(has_note(run, "two of each pair"));
}

// TRL puts bf16 adapters on quantized weights, axolotl's own are fp32; dropout is off.
TEST_CASE(
    "trainers of preferences turn dropout off, and TRL's adapters are narrow on packed weights") {
  const RunReading plain = read_trainer_run(kAxolotl, with(kLora, "rl", "dpo"));
  CHECK(plain.job.adapters.dropout == 0);
  CHECK(plain.job.adapters.dtype == DType::kFp32);
  const TrainerWords packed = with(kLora, "load_in_8bit", "true");
  CHECK(read_trainer_run(kAxolotl, with(packed, "rl", "dpo")).job.adapters.dtype == DType::kBf16);
  CHECK(read_trainer_run(kAxolotl, with(packed, "rl", "orpo")).job.adapters.dtype == DType::kFp32);
  CHECK(read_trainer_run(kAxolotl, packed).job.adapters.dropout == 0.05);
}

TEST_CASE("what of preferences is not described is refused by name") {
  const TrainerWords dpo = with(kLora, "rl", "dpo");
  const auto refuses = [&](const char* name, const char* value, const char* reason) {
    return is_refused(read_trainer_run(kAxolotl, with(dpo, name, value)), reason);
  };
  CHECK(refuses("dpo_use_liger_kernel", "true", "dpo_use_liger_kernel true: Liger's fused loss"));
  CHECK(refuses("dpo_use_weighting", "true", "dpo_use_weighting true"));
  CHECK(refuses("rl_adapter_ref_model", "true", "rl_adapter_ref_model true: a second model"));
  CHECK(refuses("dpo_loss_type", "sft", "dpo_loss_type sft"));
  CHECK(is_refused(read_trainer_run(kAxolotl, with(kLora, "rl", "grpo")),
                   "rl grpo: another training"));
  CHECK(is_refused(read_trainer_run(kFactory, {{"stage", "dpo"}, {"ref_model", "other"}}),
                   "ref_model other: a reference of another model"));
}

TEST_CASE("ms-swift's rlhf_type and TRL's programs say which preferences are trained") {
  const auto swift = [](const TrainerWords& words) { return read_trainer_run(kSwift, words); };
  for (const auto& [type, objective] :
       {std::pair{"dpo", Objective::kDpo}, std::pair{"kto", Objective::kKto},
        std::pair{"orpo", Objective::kOrpo}, std::pair{"simpo", Objective::kSimpo},
        std::pair{"cpo", Objective::kSimpo}, std::pair{"rm", Objective::kReward}}) {
    const RunReading run = swift({{"rlhf_type", type}});
    CHECK(run.unsupported.empty());
    CHECK(run.job.profile.objective == objective);
    CHECK(run.job.profile.objective_trainer == ObjectiveTrainer::kSwift);
    CHECK(run.job.adapters.dropout == 0);
  }
  for (const char* const type : {"grpo", "ppo", "gkd"}) {
    CHECK(is_refused(swift({{"rlhf_type", type}}), "another training than of the next token"));
  }
  // TRL's own loss of the next token, in chunks, is none of preferences.
  const RunReading trl = read_trainer_run(kTrl, {{"trl_task", "dpo"}, {"use_peft", "true"}});
  CHECK(trl.unsupported.empty());
  CHECK(trl.job.profile.objective_trainer == ObjectiveTrainer::kTrl);
  CHECK(trl.job.profile.head_loss == HeadLoss::kStock);
  CHECK(trl.plan.micro_batch == 16);  // of 8 pairs, the default
}

TEST_CASE("what of ms-swift's and TRL's preferences is not described is refused by name") {
  const auto swift = [](const char* name, const char* value) {
    return read_trainer_run(kSwift, {{"rlhf_type", "dpo"}, {name, value}});
  };
  CHECK(is_refused(swift("padding_free", "true"), "padding_free true: texts of pairs behind"));
  CHECK(is_refused(swift("packing", "true"), "packing true: texts of pairs behind"));
  CHECK(is_refused(swift("router_aux_loss_coef", "0.001"), "router_aux_loss_coef 0.001"));
  CHECK(is_refused(swift("ref_model", "a/b"), "ref_model a/b: a reference of another model"));
  CHECK(is_refused(swift("ref_adapters", "a/b"), "ref_adapters a/b: a reference of another"));
  CHECK(is_refused(read_trainer_run(kSwift, {{"rlhf_type", "simpo"}, {"cpo_alpha", "0"}}),
                   "cpo_alpha 0: pairs without the loss of the chosen"));
  // What it adds to the loss is of log-probabilities that are there.
  CHECK(swift("rpo_alpha", "0.1").unsupported.empty());
  CHECK(swift("loss_type", "sigmoid, sft").unsupported.empty());
  // It asks the reference whatever it is told.
  CHECK(!swift("precompute_ref_log_probs", "true").job.profile.precomputes_reference);
  const auto trl = [](const char* name, const char* value) {
    return read_trainer_run(kTrl, {{"trl_task", "dpo"}, {name, value}});
  };
  CHECK(is_refused(trl("use_weighting", "true"), "use_weighting true"));
  CHECK(is_refused(trl("use_liger_kernel", "true"), "use_liger_kernel true: Liger's fused"));
  CHECK(is_refused(trl("loss_type", "sigmoid, sft"), "loss_type sigmoid, sft"));
  CHECK(trl("precompute_ref_log_probs", "true").job.profile.precomputes_reference);
}

TEST_CASE("TF32 is what a run says, and axolotl's by default") {
  const auto tf32 = [](TrainerProject project, const TrainerWords& words) {
    return read_trainer_run(project, words).job.profile.tf32;
  };
  CHECK(!tf32(kTrl, {}));
  CHECK(tf32(kTrl, {{"tf32", "true"}}));
  CHECK(tf32(kAxolotl, {}));
  CHECK(tf32(kAxolotl, {{"tf32", "auto"}}));
  CHECK(!tf32(kAxolotl, {{"tf32", "false"}}));
}

TEST_CASE("a reference that ran before training is said") {
  const TrainerWords dpo = with(kLora, "rl", "dpo");
  CHECK(!read_trainer_run(kAxolotl, dpo).job.profile.precomputes_reference);
  CHECK(read_trainer_run(kAxolotl, with(dpo, "precompute_ref_log_probs", "true"))
            .job.profile.precomputes_reference);
}

// require_logits: of Liger's kernels those of layers alone.
TEST_CASE("LLaMA-Factory's preferences take Liger's layers without its loss") {
  const RunReading run = read_trainer_run(
      kFactory, {{"stage", "dpo"}, {"finetuning_type", "lora"}, {"enable_liger_kernel", "true"}});
  CHECK(run.unsupported.empty());
  CHECK(run.job.profile.head_loss == HeadLoss::kStock);
  CHECK(run.job.profile.liger_kernel != LigerKernel::kOff);
}

}  // namespace shardplan
