// Preferences and rewards, counted by hand; what autograd saves and makes of each was read of
// TRL 1.8.0's and LLaMA-Factory's own functions with PyTorch 2.11's memory profiler on the CPU.
#include <doctest/doctest.h>

#include "estimator/frameworks/transformers/kernels.h"
#include "estimator/time/block_time.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

// Four sequences of 512 tokens, whose logits are of 1024.
constexpr std::int64_t kSequences = 4;
constexpr std::int64_t kTokens = kSequences * 512;
constexpr std::int64_t kVocab = 1024;
constexpr std::int64_t kLogits = 4 * kTokens * kVocab;               // bytes in fp32
constexpr std::int64_t kRows = 4 * (kTokens - kSequences) * kVocab;  // of tokens that predict one
constexpr std::int64_t kChunk = 4 * 128 * kVocab;                    // of the entropy that TRL logs
// Log-probabilities, sums, labels and tensors of one number.
constexpr std::int64_t kOfTokens = 64 * kTokens;

Job job_for(Objective objective, ObjectiveTrainer trainer = ObjectiveTrainer::kTrl,
            std::int64_t gpus = 1) {
  Job job = small_trainer_job(gpus);
  job.global_batch = kSequences * gpus;
  job.profile.objective = objective;
  job.profile.objective_trainer = trainer;
  job.adapters = adapters_on_all(8);
  return job;
}

Plan four_sequences() {
  Plan plan = trainer_plan(0);
  plan.micro_batch = kSequences;
  return plan;
}

std::int64_t most_logits(const Job& job, MomentKind moment) {
  return most_bytes(job, four_sequences(), moment, "head.logits");
}

std::int64_t most_gradients(const Job& job) {
  return most_bytes(job, four_sequences(), MomentKind::kLossBackward, "head.logits_gradients");
}

void check_near(std::int64_t found, std::int64_t counted) {
  CHECK(found >= counted);
  CHECK(found <= counted + kOfTokens);
}

}  // namespace

// The logits of both models, a copy of the rows that predict a token, and three tensors of 128 of
// them.
TEST_CASE("DPO of TRL has the logits of two models and a copy while it logs their entropy") {
  const Job job = job_for(Objective::kDpo);
  check_near(most_logits(job, MomentKind::kLossForward), 2 * kLogits + kRows + 3 * kChunk);
}

// Each sequence's gradient, all of them stacked, zeros of the logits that were gathered, and those
// with the last tokens.
TEST_CASE("DPO of TRL keeps its logits alone, whose gradient is made sequence by sequence") {
  const Job job = job_for(Objective::kDpo);
  check_near(most_logits(job, MomentKind::kLossBackward), kLogits);
  check_near(most_gradients(job), kLogits + kRows);
}

// The logits of both models, the reference's in bf16 beside themselves in fp32; then the
// exponentials of one sequence, which are fewer. Labels are rolled, so that no row is left out. Of
// logits in fp32 PyTorch 2.11's memory profiler saw 2.26 tensors of logits forward and 3.01
// backward on the CPU, in ms-swift 3602360's functions with TRL 0.29.1's selective_log_softmax.
TEST_CASE("DPO and KTO of ms-swift have the logits of two models and log nothing of them") {
  for (const Objective objective : {Objective::kDpo, Objective::kKto}) {
    const Job job = job_for(objective, ObjectiveTrainer::kSwift);
    check_near(most_logits(job, MomentKind::kLossForward), 2 * kLogits + kLogits / 2);
    check_near(most_logits(job, MomentKind::kLossBackward), kLogits);
    check_near(most_gradients(job), 2 * kLogits);
  }
}

TEST_CASE("ORPO, SimPO and rewards of ms-swift are TRL's") {
  for (const Objective objective : {Objective::kOrpo, Objective::kSimpo, Objective::kReward}) {
    const Job trl = job_for(objective);
    const Job swift = job_for(objective, ObjectiveTrainer::kSwift);
    for (const MomentKind moment : {MomentKind::kLossForward, MomentKind::kLossBackward}) {
      CHECK(most_logits(swift, moment) == most_logits(trl, moment));
    }
  }
}

TEST_CASE("a precomputed reference leaves out its logits") {
  Job job = job_for(Objective::kDpo);
  job.profile.precomputes_reference = true;
  check_near(most_logits(job, MomentKind::kLossForward), kLogits + kRows + 3 * kChunk);
}

// Logits of the policy and its log-softmax; beside them the reference's logits, their rows laid out
// anew and their log-softmax. The policy's log-softmax alone is saved.
TEST_CASE("DPO of LLaMA-Factory has five tensors of logits at once") {
  const Job job = job_for(Objective::kDpo, ObjectiveTrainer::kFactory);
  check_near(most_logits(job, MomentKind::kLossForward), 2 * kLogits + 3 * kRows);
  check_near(most_logits(job, MomentKind::kLossBackward), kRows);
  check_near(most_gradients(job), kLogits + kRows);
}

// A copy of the chosen half and its log-softmax beside the logits; both log-softmax and logits are
// saved.
TEST_CASE("ORPO and SimPO of TRL take the loss of the chosen beside that of pairs") {
  for (const Objective objective : {Objective::kOrpo, Objective::kSimpo}) {
    const Job job = job_for(objective);
    check_near(most_logits(job, MomentKind::kLossForward), kLogits + kRows);
    check_near(most_logits(job, MomentKind::kLossBackward), kLogits + kRows / 2);
  }
}

TEST_CASE("ORPO of LLaMA-Factory is its DPO without a reference") {
  const Job job = job_for(Objective::kOrpo, ObjectiveTrainer::kFactory);
  check_near(most_logits(job, MomentKind::kLossForward), kLogits + 2 * kRows);
  check_near(most_logits(job, MomentKind::kLossBackward), kRows);
}

// The logits of both models, copies of good and bad texts' logits, and the entropy's.
TEST_CASE("KTO of TRL copies the logits of good and of bad texts") {
  const Job job = job_for(Objective::kKto);
  check_near(most_logits(job, MomentKind::kLossForward), 3 * kLogits + kRows + 3 * kChunk);
  check_near(most_logits(job, MomentKind::kLossBackward), kLogits);
}

// The policy's log-softmax and copies; of the reference the texts' logits, and those of texts that
// do not belong together, laid out anew, with their log-softmax.
TEST_CASE("KTO of LLaMA-Factory has six tensors of logits at once") {
  const Job job = job_for(Objective::kKto, ObjectiveTrainer::kFactory);
  check_near(most_logits(job, MomentKind::kLossForward), 3 * kLogits + 3 * kRows);
  check_near(most_logits(job, MomentKind::kLossBackward), kRows);
}

// bf16 logits go by a log-softmax of each sequence: those are saved, not the logits.
TEST_CASE("without autocast log-probabilities are of logits in bf16") {
  Job job = job_for(Objective::kDpo);
  job.profile.autocast = false;
  job.adapters.dtype = DType::kBf16;
  check_near(most_logits(job, MomentKind::kLossForward),
             (2 * kLogits + 2 * kRows + 3 * kChunk) / 2);
  check_near(most_logits(job, MomentKind::kLossBackward), kRows / 2);
  check_near(most_gradients(job), (kLogits + kRows) / 2);
}

// --- the reference model ---

TEST_CASE(
    "a reference lies beside a model that trains all parameters, in the type of its weights") {
  Job job = job_for(Objective::kDpo);
  CHECK(idle_bytes(job, four_sequences(), "reference_model") == 0);  // adapters are turned off
  job.adapters = {};
  CHECK(idle_bytes(job, four_sequences(), "reference_model") == 2 * kSmallModel);
  job.profile.weights_dtype = DType::kFp32;
  CHECK(idle_bytes(job, four_sequences(), "reference_model") == 4 * kSmallModel);
  job.profile.objective_trainer = ObjectiveTrainer::kFactory;  // which narrows it
  CHECK(idle_bytes(job, four_sequences(), "reference_model") == 2 * kSmallModel);
  job.profile.objective_trainer = ObjectiveTrainer::kTrl;
  job.profile.precomputes_reference = true;
  CHECK(idle_bytes(job, four_sequences(), "reference_model") == 0);
}

// Nothing is kept of its layers: the layers of the policy alone are there when backward begins.
TEST_CASE("a reference keeps no activations") {
  const Job with = job_for(Objective::kDpo);
  Job without = with;
  without.profile.precomputes_reference = true;
  for (const char* const row :
       {"layer.attention", "layer.ffn", "layer.norm", "layer.residual", "adapter.activations"}) {
    CAPTURE(row);
    CHECK(most_bytes(with, four_sequences(), MomentKind::kLossBackward, row) ==
          most_bytes(without, four_sequences(), MomentKind::kLossBackward, row));
  }
}

TEST_CASE("layers that run again leave the reference's forward pass as it was") {
  Plan recomputed = four_sequences();
  recomputed.recompute = {.granularity = RecomputeGranularity::kFull};
  const Job job = job_for(Objective::kDpo);
  CHECK(peak_of(job, recomputed, MomentKind::kLossBackward) <
        peak_of(job, four_sequences(), MomentKind::kLossBackward));
  check_near(most_bytes(job, recomputed, MomentKind::kLossForward, "head.logits"),
             2 * kLogits + kRows + 3 * kChunk);
}

// --- labels ---

// A row of 512 in place of the head, and no logits of the vocabulary.
TEST_CASE("a reward model ends in one number a token") {
  Job job = job_for(Objective::kReward);
  job.adapters = {};
  CHECK(idle_bytes(job, four_sequences(), "parameters") == 2 * (kSmallModel - kSmallTable + 512));
  CHECK(most_logits(job, MomentKind::kLossForward) < kOfTokens);
  job.profile.objective = Objective::kTokenLabels;
  job.profile.num_labels = 2;
  CHECK(idle_bytes(job, four_sequences(), "parameters") ==
        2 * (kSmallModel - kSmallTable + 2 * 512 + 2));
}

// peft trains a copy of the layer of labels and keeps the original (modules_to_save).
TEST_CASE("an adapted reward model trains a copy of its layer of labels") {
  const Job job = job_for(Objective::kReward);
  const Job next_token = job_for(Objective::kNextToken);
  CHECK(idle_bytes(job, four_sequences(), "adapters") ==
        idle_bytes(next_token, four_sequences(), "adapters") + 2 * 512);
}

// LLaMA-Factory's has the head's logits in bf16 and in fp32 while values are made, and of them no
// gradient.
TEST_CASE("a value head stands beside the head, whose logits nobody reads") {
  const Job job = job_for(Objective::kReward, ObjectiveTrainer::kFactory);
  const std::int64_t forward = most_logits(job, MomentKind::kLossForward);
  CHECK(forward >= 3 * kLogits / 2);
  CHECK(forward <= 2 * kLogits + kLogits);  // beside the hidden states in fp32
  CHECK(most_gradients(job) < kLogits);
  CHECK(most_logits(job, MomentKind::kLossBackward) < kLogits);
}

// --- time ---

// KTO's are those of texts that do not belong together, of both models, and the reference's.
TEST_CASE("a forward pass without a graph takes as long as the one with it") {
  const auto time_of = [](Objective objective) {
    const Job job = job_for(objective);
    return layer_time(kKernels, job, four_sequences(), job.model.layers.front());
  };
  const BlockTime alone = time_of(Objective::kOrpo);
  for (const auto& [objective, passes] :
       {std::pair{Objective::kDpo, 2.0}, std::pair{Objective::kKto, 4.0}}) {
    const BlockTime time = time_of(objective);
    CHECK(time.forward_s == doctest::Approx(passes * alone.forward_s));
    CHECK(time.backward_input_s == alone.backward_input_s);
    CHECK(time.backward_weight_s == alone.backward_weight_s);
  }
}

TEST_CASE("layers that run again in backward run once, whatever stands beside them") {
  Plan recomputed = four_sequences();
  recomputed.recompute = {.granularity = RecomputeGranularity::kFull};
  const auto replay_of = [&](Objective objective) {
    const Job job = job_for(objective);
    return layer_time(kKernels, job, recomputed, job.model.layers.front()).recompute_s;
  };
  CHECK(replay_of(Objective::kOrpo) > 0);
  CHECK(replay_of(Objective::kDpo) == doctest::Approx(replay_of(Objective::kOrpo)));
}

// A number for each token in place of 65,536.
TEST_CASE("a layer of labels takes less time than a head") {
  const auto head_of = [](Objective objective) {
    Job job = job_for(objective);
    job.model.vocab = 65536;
    return model_times(kKernels, job, four_sequences()).head;
  };
  CHECK(head_of(Objective::kReward).forward_s < head_of(Objective::kNextToken).forward_s / 20);
  CHECK(head_of(Objective::kReward).forward_flops * 65536 ==
        doctest::Approx(head_of(Objective::kNextToken).forward_flops));
}

// --- what is refused ---

TEST_CASE("objectives are refused where their trainers were not read") {
  const Job job = job_for(Objective::kDpo);
  check_refused(job,
                {{"microbatches_are_pairs",
                  [](Job& spoilt, Plan& plan) {
                    plan.micro_batch = 1;
                    spoilt.global_batch = 4;
                  },
                  {"micro_batch 1", "dpo", "even"}},
                 {"microbatches_are_pairs",
                  [](Job& spoilt, Plan&) { spoilt.sequence_length = 1; },
                  {"sequence_length 1", "at least 2"}},
                 {"unsupported: objective",
                  [](Job& spoilt, Plan&) { spoilt.profile.head_loss = HeadLoss::kFusedLinear; },
                  {"dpo with head_loss fused_linear"}},
                 {"unsupported: objective",
                  [](Job& spoilt, Plan&) { spoilt.profile.loop = TrainerLoop::kScript; },
                  {"dpo with loop script"}}},
                four_sequences());
  check_refused(job_for(Objective::kDpo, ObjectiveTrainer::kTrl, 2),
                {{"unsupported: objective",
                  [](Job&, Plan& plan) { plan.zero = 3; },
                  {"dpo with zero 3", "zero 0"}}},
                four_sequences());
}

}  // namespace shardplan::transformers
