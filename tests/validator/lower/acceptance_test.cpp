// All layouts against the plain model, and bit for bit against one another where nothing but the
// place of an operation changes.
#include <doctest/doctest.h>

#include <map>

#include "estimator/answer/why_invalid.h"
#include "tests/validator/random_layouts.h"

namespace shardplan {
namespace {

// Gradients of two plans for the same tokens, bit for bit.
void check_same_bits(const Layout& layout, const Plan& other, std::int64_t other_world) {
  Job job = layout.job;
  job.cluster.gpus_per_node = other_world;
  REQUIRE_FALSE(why_invalid(job, other));
  REQUIRE_FALSE(why_not_lowered(job, other));
  INFO(layout.text() << " and" << text_of(other));
  const Batch batch = random_batch(layout.job, 3);
  const StepResult a = run_step(layout.job, layout.plan, batch);
  const StepResult b = run_step(job, other, batch);
  // Parts of the loss of experts are added on the stage where they arise.
  if (layout.job.model.moe.num_experts == 0 || layout.plan.pp == other.pp) {
    CHECK(a.loss == b.loss);
  }
  CHECK(bitwise_equal(a.gradients, b.gradients));
}

}  // namespace

TEST_CASE("400 random layouts of up to 16 ranks compute the reference's loss and gradients") {
  const std::vector<Layout> layouts = random_layouts(11, 400);
  for (const auto& row : feature_counts(layouts)) {
    const auto& feature = row.first;
    const auto& count = row.second;
    INFO(feature << ": " << count);
    CHECK(count >= 5);
  }
  for (const Layout& layout : layouts) {
    INFO(layout.text());
    CHECK(difference_from_reference<double>(layout, {}) == "");
  }
}

TEST_CASE("single precision follows the reference to its own accuracy in random layouts") {
  for (const Layout& layout : random_layouts(12, 40)) {
    INFO(layout.text());
    CHECK(difference_from_reference<float>(layout, {.loss = 1e-6, .gradients = 1e-4}) == "");
  }
}

TEST_CASE("recomputation changes no bit of random layouts") {
  for (const Layout& layout : random_layouts(13, 30)) {
    Plan kept = layout.plan;
    kept.recompute = {};
    check_same_bits(layout, kept, layout.job.cluster.world_size());
  }
}

TEST_CASE("stages of any schedule give the bits of one stage in random layouts") {
  std::int64_t compared = 0;
  for (const Layout& layout : random_layouts(14, 80)) {
    // The two ends of tied embeddings add their gradients once, not by microbatches.
    if (layout.plan.pp == 1 || layout.job.model.tied_embeddings) {
      continue;
    }
    Plan one = layout.plan;
    one.pp = 1;
    one.vpp = 1;
    one.schedule = Schedule::kNone;
    check_same_bits(layout, one, layout.job.cluster.world_size() / layout.plan.pp);
    ++compared;
  }
  CHECK(compared >= 20);
}

// Stages 2 and 3 reduce every microbatch by itself: another order of sums than stages 0 and 1.
TEST_CASE("ZeRO stages that reduce by the same calls give the same bits in random layouts") {
  std::map<std::int64_t, std::int64_t> compared;
  for (const Layout& layout : random_layouts(15, 80)) {
    const std::int64_t zero = layout.plan.zero;
    Plan other = layout.plan;
    other.zero = zero - 1;
    if (zero % 2 == 0 || (zero == 1 && layout.plan.dp_replicate > 1)) {
      continue;
    }
    check_same_bits(layout, other, layout.job.cluster.world_size());
    ++compared[zero];
  }
  CHECK(compared[1] >= 5);
  CHECK(compared[3] >= 10);
}

TEST_CASE("every run of a layout gives the same bits") {
  for (const Layout& layout : random_layouts(16, 15)) {
    check_same_bits(layout, layout.plan, layout.job.cluster.world_size());
  }
}

}  // namespace shardplan
