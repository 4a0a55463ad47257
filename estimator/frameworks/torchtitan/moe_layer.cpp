// models/moe/moe.py (MoE, TokenChoiceTopKRouter, TokenReorderer, GroupedExperts), utils.py
// (_permute, _unpermute) and distributed/expert_parallel.py at v0.2.2, each operation on its own:
// softmax, normalised weights, scores applied behind the experts; of Llama 4 a sigmoid, weights as
// they are, applied to what the experts take.
#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kInt64OfInt32 = 2;

}  // namespace

// Weights of the chosen experts. The router's locals live until it returns.
void EagerLayer::route(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  const bool is_saved = sizes_.saves_product(Weight::kRouter);
  const bool is_there = pass == LayerPass::kReplayOps && is_saved;
  const TapeTensor logits = product(layer, Weight::kRouter, s.logits, pass, !is_there);
  m.logits = is_there ? m.logits : logits;
  TapeTensor wide = tape_.make(s.scores);
  m.probabilities = tape_.make(s.scores);
  tape_.free(wide);
  if (pass != LayerPass::kSavesOps || !is_saved) {
    tape_.free(m.logits);
  }
  TapeTensor biased = tape_.make(s.scores);
  TapeTensor largest = tape_.make(s.weights);
  m.choices = tape_.make(s.choices);
  m.chosen = tape_.make(s.weights);
  TapeTensor normalised;
  if (!s.scores_rows_first) {
    TapeTensor sum = tape_.make(s.denominators);
    m.denominators = tape_.make(s.denominators);
    tape_.free(sum);
    normalised = tape_.make(s.weights);
    if (!graph_saves(pass)) {
      tape_.free(m.chosen);
    }
  }
  m.weights = tape_.make(s.weights);
  if (s.scores_rows_first) {
    tape_.free(m.chosen);
  }
  tape_.free(normalised, biased, largest);
  if (!graph_saves(pass)) {
    tape_.free(m.probabilities, m.denominators);
  }
}

// Positions of rows, and CUB's copies of keys and values.
void EagerLayer::sort(std::int64_t rows) {
  TapeTensor positions = tape_.make(kInt64 * rows);
  TapeTensor copies = tape_.make(2 * kInt64 * rows);
  tape_.free(copies, positions);
}

// Rows in fp32 times the scores, and back in their dtype.
void EagerLayer::score_rows(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  m.wide = tape_.make(s.wide_rows);
  TapeTensor scored = tape_.make(s.wide_rows);
  if (!graph_saves(pass)) {
    tape_.free(m.wide);
  }
  const TapeTensor rows = tape_.make(s.rows);
  tape_.free(scored, m.sent);
  m.sent = rows;
}

// Rows in the order of experts, padded to whole eights.
void EagerLayer::dispatch(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  TapeTensor sorted = tape_.make(s.order);
  m.order = tape_.make(s.order);
  sort(s.sent);
  tape_.free(sorted);
  m.order_weights = tape_.make(s.order_weights);
  m.token_of_row = tape_.make(s.order);
  m.sent = tape_.make(s.rows);
  if (!graph_saves(pass)) {
    tape_.free(m.token_of_row);
  }
  if (s.scores_rows_first) {
    score_rows(layer, pass);
  }
  run(hooks_.enter);
  const bool is_received = pass == LayerPass::kReplayOps && s.saves_exchanges;
  TapeTensor received =
      is_received ? std::exchange(m.saved_received, {}) : tape_.make(s.exchanges ? s.rows : 0);
  m.slots = tape_.make(s.slots);
  TapeTensor joined = tape_.make(s.rows_and_zero);
  TapeTensor slots = tape_.make(kInt64OfInt32 * s.slots);
  m.padded = tape_.make(s.padded_rows);
  if (pass == LayerPass::kSavesOps && s.saves_exchanges) {
    m.saved_received = std::exchange(received, {});
  }
  tape_.free(slots, joined, received);
}

// Under autocast weights and rows are cast for every product, whatever autocast has cached.
TapeTensor EagerLayer::expert_product(LayerTensors& layer, Weight weight, std::int64_t bytes,
                                      LayerPass pass) {
  ProductCasts& casts = layer.casts[static_cast<std::size_t>(weight)];
  const bool casts_input = sizes_.autocast && weight != Weight::kDown;
  casts.input = tape_.make(casts_input ? sizes_.moe.expert_input : 0);
  casts.weight = tape_.make(sizes_.autocast ? sizes_.weight(weight) : 0);
  const TapeTensor output = tape_.make_product(bytes);
  if (!graph_saves(pass)) {
    tape_.free(casts.input, casts.weight);
  }
  return output;
}

TapeTensor EagerLayer::expert_products(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  layer.gate = expert_product(layer, Weight::kGate, s.inner, pass);
  layer.silu = tape_.make(s.inner);
  if (!graph_saves(pass)) {
    tape_.free(layer.gate);
  }
  layer.up = expert_product(layer, Weight::kUp, s.inner, pass);
  layer.product = tape_.make(s.inner);
  if (!graph_saves(pass)) {
    tape_.free(layer.silu, layer.up);
  }
  TapeTensor output = expert_product(layer, Weight::kDown, s.expert_input, pass);
  if (sizes_.autocast) {
    tape_.replace(output, s.padded_rows);
  }
  if (!graph_saves(pass)) {
    tape_.free(layer.product);
  }
  return output;
}

void EagerLayer::run_experts(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  TapeTensor output = expert_products(layer, pass);
  m.returned = tape_.make(s.rows_and_zero);
  TapeTensor slots = tape_.make(kInt64OfInt32 * s.slots);
  tape_.free(slots);
  if (pass == LayerPass::kReplayOps && s.saves_exchanges) {
    tape_.free(m.returned);
    m.returned = std::exchange(m.saved_returned, {});
  } else if (s.exchanges) {
    tape_.replace(m.returned, s.rows);
  }
  tape_.free(output);
  run(hooks_.leave_forward);
  if (!graph_saves(pass)) {
    tape_.free(m.slots);
  }
  if (!graph_saves(pass) || sizes_.autocast) {
    tape_.free(m.padded);
  }
}

// A feed-forward part of their own that all tokens pass.
void EagerLayer::shared_experts(LayerTensors& layer, LayerPass pass) {
  const std::int64_t inner = sizes_.moe.shared_inner;
  MoeTensors& m = layer.moe;
  if (inner == 0) {
    return;
  }
  m.shared_gate = product_or_saved(Weight::kSharedGate, inner, pass, m.shared_gate);
  m.shared_silu = tape_.make(inner);
  if (!keeps(Weight::kSharedGate, pass)) {
    tape_.free(m.shared_gate);
  }
  m.shared_up = product_or_saved(Weight::kSharedUp, inner, pass, m.shared_up);
  m.shared_product = tape_.make(inner);
  if (!graph_saves(pass)) {
    tape_.free(m.shared_silu);
  }
  if (!keeps(Weight::kSharedUp, pass)) {
    tape_.free(m.shared_up);
  }
  m.shared_down = product_or_saved(Weight::kSharedDown, sizes_.gathered, pass, m.shared_down);
  if (!graph_saves(pass)) {
    tape_.free(m.shared_product);
  }
}

// Rows back where their tokens are, weighted and summed by a batched product.
TapeTensor EagerLayer::combine(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  TapeTensor unsorted = tape_.make(s.all_rows);
  m.scored = tape_.make(s.scored_rows);
  TapeTensor summed = tape_.make_product(s.summed);
  if (!graph_saves(pass)) {
    tape_.free(m.scored);
  }
  TapeTensor output = tape_.make(s.stream);
  tape_.free(summed);
  if (s.shared_inner > 0) {
    tape_.replace(output, s.stream);
  }
  if (pass == LayerPass::kSavesOps && s.saves_exchanges) {
    m.saved_returned = std::exchange(m.returned, {});
  }
  if (pass != LayerPass::kSavesOps || !sizes_.saves_product(Weight::kSharedDown)) {
    tape_.free(m.shared_down);
  }
  tape_.free(unsorted, m.returned, m.sent);
  const bool saves_scores = graph_saves(pass) && s.scores_rows_first;
  if (!saves_scores) {
    tape_.free(m.order_weights);
  }
  if (!graph_saves(pass)) {
    tape_.free(m.choices, m.order);
  }
  if (!graph_saves(pass) || s.scores_rows_first) {
    tape_.free(m.weights);
  }
  return output;
}

void EagerLayer::moe(LayerTensors& layer, LayerPass pass) {
  route(layer, pass);
  dispatch(layer, pass);
  run_experts(layer, pass);
  shared_experts(layer, pass);
  layer.down = combine(layer, pass);
  if (sizes_.tensor_parallel) {
    const bool replays_ops = pass == LayerPass::kReplayOps;
    const TapeTensor reduced = reduce(replays_ops);
    layer.reduced_down = replays_ops ? layer.reduced_down : reduced;
    tape_.free(layer.down);
  }
}

}  // namespace shardplan::torchtitan
