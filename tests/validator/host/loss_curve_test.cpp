// Fifty steps on a text of a Markov chain: the loss falls, and every layout follows one curve.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/validator/random_layouts.h"

namespace shardplan {
namespace {

constexpr std::int64_t kSteps = 50;
constexpr double kLearningRate = 1e-2;

// After token t come 5 t + 1, 5 t + 2 or 5 t + 3 (modulo the vocabulary) with 80, 15 and 5 percent:
// every token is as frequent as any other, so that only the one before it tells something.
double entropy_of_chain() {
  double entropy = 0;
  for (const double share : {0.8, 0.15, 0.05}) { entropy -= share * std::log(share); }
  return entropy;
}

std::int64_t next_token(std::int64_t token, std::int64_t draw, std::int64_t vocab) {
  const double uniform = initial_value("text", draw, 5) / 0.4 + 0.5;
  const std::int64_t branch = uniform < 0.8 ? 1 : uniform < 0.95 ? 2 : 3;
  return (5 * token + branch) % vocab;
}

// The part of the text that a step reads: the next tokens of all sequences.
Batch markov_batch(const Job& job, std::int64_t step) {
  Batch batch{.sequence_length = job.sequence_length, .tokens = {}, .targets = {}};
  for (std::int64_t s = 0; s < job.global_batch; ++s) {
    const std::int64_t first = (step * job.global_batch + s) * (job.sequence_length + 1);
    std::int64_t token = first % job.model.vocab;
    for (std::int64_t i = 0; i < job.sequence_length; ++i) {
      batch.tokens.push_back(token);
      token = next_token(token, first + i, job.model.vocab);
      batch.targets.push_back(token);
    }
  }
  return batch;
}

template <class T>
std::vector<double> loss_curve(const Layout& layout) {
  HostBackend<T> backend(lower_all(layout.job, layout.plan), DeadMemory::kPoisoned);
  backend.load(initial_tensors(layout.job.model, 7));
  std::vector<double> losses;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    losses.push_back(backend.step(markov_batch(layout.job, i), kLearningRate));
  }
  return losses;
}

// The largest relative distance of two curves at any step.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = std::abs(a[i] / b[i] - 1);
    worst = apart <= worst ? worst : apart;  // NaN counts as apart
  }
  return worst;
}

const std::vector<double>& curve_of_one_rank(const ModelSpec& model) {
  static std::map<std::pair<std::string, bool>, std::vector<double>> curves;
  const auto key = std::pair(model.name, model.tied_embeddings);
  if (!curves.contains(key)) {
    curves[key] = loss_curve<double>({.job = tiny_job(model, 1), .plan = {}});
  }
  return curves.at(key);
}

}  // namespace

TEST_CASE("fifty steps learn half of what a Markov chain's last token tells") {
  for (const ModelSpec& model : {tiny_model(), tiny_moe()}) {
    const std::vector<double>& losses = curve_of_one_rank(model);
    const double nothing = std::log(static_cast<double>(model.vocab));
    CHECK(losses.front() == doctest::Approx(nothing).epsilon(0.1));
    CHECK(losses.back() < (nothing + entropy_of_chain()) / 2);
    CHECK(losses.back() > entropy_of_chain());
  }
}

TEST_CASE("24 random layouts follow the curve of one rank over fifty steps") {
  const std::vector<Layout> layouts = random_layouts(21, 24);
  for (const Layout& layout : layouts) {
    INFO(layout.text());
    CHECK(distance(loss_curve<double>(layout), curve_of_one_rank(layout.job.model)) < 1e-9);
  }
  const std::map<std::string, std::int64_t> counts = feature_counts(layouts);
  for (const char* feature : {"tp with sp", "tp without sp", "cp by all-gather", "cp by ring",
                              "zb_h1", "interleaved_1f1b", "zero 0", "zero 1", "zero 2", "zero 3",
                              "ep", "etp", "recompute selective", "recompute full"}) {
    INFO(feature);
    CHECK(counts.at(feature) >= 1);
  }
}

TEST_CASE("single precision follows the curve of double precision") {
  for (const Layout& layout : random_layouts(22, 3)) {
    INFO(layout.text());
    CHECK(distance(loss_curve<float>(layout), curve_of_one_rank(layout.job.model)) < 1e-4);
  }
}

}  // namespace shardplan
