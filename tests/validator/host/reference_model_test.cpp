#include "tests/validator/host/reference_model.h"

#include <doctest/doctest.h>

#include <cmath>

namespace shardplan {
namespace {

ModelSpec small_model() {
  ModelSpec model;
  model.hidden = 8;
  model.ffn = 12;
  model.vocab = 11;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  model.layers = {{}, {.is_moe = false, .attention_window = 3}};
  return model;
}

ModelSpec small_moe() {
  ModelSpec model = small_model();
  model.moe = {.num_experts = 4, .topk = 2, .expert_ffn = 6, .shared_ffn = 10};
  model.layers = {{.is_moe = true}, {}, {.is_moe = true}};
  return model;
}

Batch small_batch(const ModelSpec& model, std::int64_t sequences, std::int64_t length) {
  Batch batch{.sequence_length = length, .tokens = {}, .targets = {}};
  for (std::int64_t i = 0; i < sequences * length; ++i) {
    batch.tokens.push_back((i * i + 3 * i + 1) % model.vocab);
    batch.targets.push_back((5 * i + 2) % model.vocab);
  }
  return batch;
}

// The largest difference between a gradient and its central difference, over every element.
double worst_difference(const ModelSpec& model) {
  const Batch batch = small_batch(model, 2, 5);
  const ReferenceSettings settings{.aux_coefficient = 0.3};
  Tensors tensors = initial_tensors(model, 7);
  const ReferenceStep step = reference_step(model, tensors, batch, settings);
  CHECK(step.loss == reference_loss(model, tensors, batch, settings));
  constexpr double kDelta = 1e-5;
  double worst = 0;
  for (auto& [name, tensor] : tensors) {
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      const double before = tensor.values[i];
      tensor.values[i] = before + kDelta;
      const double above = reference_loss(model, tensors, batch, settings);
      tensor.values[i] = before - kDelta;
      const double below = reference_loss(model, tensors, batch, settings);
      tensor.values[i] = before;
      const double difference =
          std::abs((above - below) / (2 * kDelta) - step.gradients.at(name).values[i]);
      worst = std::max(worst, difference);
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("gradients of a dense model equal central differences, element by element") {
  CHECK(worst_difference(small_model()) < 1e-9);
}

TEST_CASE("gradients of a model with tied embeddings equal central differences") {
  ModelSpec model = small_model();
  model.tied_embeddings = true;
  CHECK(worst_difference(model) < 1e-9);
}

TEST_CASE("gradients of a mixture of experts with shared experts equal central differences") {
  CHECK(worst_difference(small_moe()) < 1e-9);
}

TEST_CASE("a model that knows nothing has the loss of a uniform guess") {
  const ModelSpec model = small_model();
  Tensors tensors = initial_tensors(model, 1);
  for (double& value : tensors.at("head").values) { value = 0; }
  const double loss = reference_loss(model, tensors, small_batch(model, 1, 6), {});
  CHECK(loss == doctest::Approx(std::log(11.0)).epsilon(1e-12));
}

TEST_CASE("earlier tokens do not see the last one: its probabilities alone sum to 1") {
  const ModelSpec model = small_model();
  const Tensors tensors = initial_tensors(model, 1);
  Batch batch = small_batch(model, 1, 5);
  const double first_five = reference_loss(model, tensors, batch, {}) * 5;
  batch.sequence_length = 6;
  batch.targets.push_back(0);
  for (std::int64_t last = 0; last < model.vocab; ++last) {
    batch.tokens.resize(5);
    batch.tokens.push_back(last);
    double probability = 0;
    for (std::int64_t target = 0; target < model.vocab; ++target) {
      batch.targets.back() = target;
      probability += std::exp(first_five - 6 * reference_loss(model, tensors, batch, {}));
    }
    CHECK(probability == doctest::Approx(1).epsilon(1e-12));
  }
}

TEST_CASE("initial values depend on the tensor, the index and the seed, and are repeatable") {
  CHECK(initial_value("head", 3, 1) == initial_value("head", 3, 1));
  CHECK(initial_value("head", 3, 1) != initial_value("head", 4, 1));
  CHECK(initial_value("head", 3, 1) != initial_value("head", 3, 2));
  CHECK(initial_value("head", 3, 1) != initial_value("embedding", 3, 1));
}

}  // namespace shardplan
