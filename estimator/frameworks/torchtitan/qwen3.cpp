// models/qwen3/model/model.py: norms of queries and keys over the heads (nn.RMSNorm) and rotation
// by cosines and sines in bf16 (apply_rotary_emb, rotate_half), each operation on its own.
#include "estimator/frameworks/torchtitan/qwen3.h"

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16
constexpr std::int64_t kHalf = 2;   // of a head

// Every half's gradient is a tensor of the whole, with zeros. `sines` and `cosines`: where this is
// their last use.
void turn_back(TitanTape& tape, TapeTensor& gradient, TapeTensor* sines, TapeTensor* cosines) {
  const std::int64_t bytes = gradient.bytes;
  TapeTensor of_halves = tape.make(bytes);
  if (sines != nullptr) {
    tape.free(*sines);
  }
  TapeTensor negated = tape.make(bytes / kHalf);
  TapeTensor first = tape.make(bytes);
  tape.free(negated);
  TapeTensor second = tape.make(bytes);
  tape.free(of_halves);
  TapeTensor sum = tape.make(bytes);
  tape.free(first, second);
  TapeTensor by_cosine = tape.make(bytes);
  tape.free(gradient);
  if (cosines != nullptr) {
    tape.free(*cosines);
  }
  gradient = tape.make(bytes);
  tape.free(sum, by_cosine);
}

}  // namespace

TapeTensor turn_halves(TitanTape& tape, std::int64_t bytes) {
  TapeTensor by_cosine = tape.make(bytes);
  TapeTensor negated = tape.make(bytes / kHalf);
  TapeTensor halves = tape.make(bytes);
  tape.free(negated);
  TapeTensor by_sine = tape.make(bytes);
  tape.free(halves);
  const TapeTensor turned = tape.make(bytes);
  tape.free(by_cosine, by_sine);
  return turned;
}

void save_rotary(TitanTape& tape, const TitanSizes& sizes, LayerTensors& layer) {
  if (sizes.autocast) {
    layer.cosines = tape.make(sizes.cosines);
    layer.sines = tape.make(sizes.cosines);
  } else if (sizes.cp > 1 && !sizes.joins_batch) {
    layer.cosines = tape.make(2 * sizes.cosines);
  } else {
    layer.cosines = std::exchange(layer.rotary_cast, {});
  }
}

// ATen/native/layer_norm.cpp, rms_norm_symint: fused where weight and input have one dtype, else
// rms_norm_composite.
TapeTensor EagerLayer::norm_heads(TapeTensor& input, HeadNorm& norm, std::int64_t statistics,
                                  LayerPass pass, bool keeps_input) {
  const std::int64_t bytes = input.bytes;
  if (!sizes_.autocast) {
    const TapeTensor output = tape_.make(bytes);
    norm.statistics = tape_.make(statistics);
    if (!graph_saves(pass)) {
      tape_.free(norm.statistics);
    }
    if (!keeps_input) {
      tape_.free(input);
    }
    return output;
  }
  norm.wide_input = tape_.make(kWiden * bytes);
  TapeTensor squares = tape_.make(kWiden * bytes);
  TapeTensor mean = tape_.make(statistics);
  tape_.free(squares);
  norm.statistics = tape_.make(statistics);
  tape_.free(mean);
  norm.wide_result = tape_.make(kWiden * bytes);
  TapeTensor scaled = tape_.make(kWiden * bytes);
  if (!graph_saves(pass)) {
    tape_.free(norm.wide_result);
  }
  const TapeTensor output = tape_.make(bytes);
  tape_.free(scaled);
  if (!graph_saves(pass)) {
    tape_.free(norm.wide_input, norm.statistics);
  }
  if (!keeps_input) {
    tape_.free(input);
  }
  return output;
}

void EagerLayer::norm_heads_backward(TapeTensor& gradient, TapeTensor& input, HeadNorm& norm,
                                     std::int64_t statistics) {
  const std::int64_t bytes = gradient.bytes;
  if (!sizes_.autocast) {
    // Those of a ring lie in other strides than the kernel reads.
    TapeTensor copy = tape_.make(sizes_.cp > 1 ? bytes : 0);
    const TapeTensor of_input = tape_.make(bytes);
    tape_.free(copy, gradient, input, norm.statistics);
    gradient = of_input;
    return;
  }
  const std::int64_t wide = kWiden * bytes;
  TapeTensor of_output = tape_.make(wide);
  tape_.free(gradient);
  TapeTensor of_result = tape_.make(wide);
  TapeTensor of_weight = tape_.make(wide);
  tape_.free(of_weight, of_output, norm.wide_result);
  TapeTensor of_input = tape_.make(wide);
  TapeTensor of_root = tape_.make(wide);
  TapeTensor of_mean = tape_.make(statistics);
  tape_.free(of_root, of_result, norm.statistics);
  TapeTensor spread = tape_.make(wide);
  tape_.free(of_mean);
  TapeTensor power = tape_.make(wide);
  TapeTensor doubled = tape_.make(wide);
  TapeTensor of_squares = tape_.make(wide);
  tape_.free(doubled, power, spread, norm.wide_input);
  TapeTensor sum = tape_.make(wide);
  tape_.free(of_input, of_squares);
  gradient = tape_.make(bytes);
  tape_.free(sum);
}

// Casts of the table, or, where FSDP has cast it for the block, parts of that, with cp picked by
// position.
void EagerLayer::take_rotary(LayerTensors& layer, LayerPass pass) {
  if (sizes_.autocast) {
    layer.cosines = tape_.make(sizes_.cosines);
    layer.sines = tape_.make(sizes_.cosines);
  } else if (sizes_.cp > 1) {
    layer.cosines = tape_.make(2 * sizes_.cosines);
  } else if (pass == LayerPass::kSaves) {
    layer.cosines = std::exchange(layer.rotary_cast, {});
  }
}

void EagerLayer::rotate_halves(LayerTensors& layer, LayerPass pass) {
  const bool keeps = graph_saves(pass) && !sizes_.autocast;
  TapeTensor query = norm_heads(layer.query, layer.query_norm, sizes_.query_statistics, pass,
                                keeps || pass == LayerPass::kSavesOps);
  TapeTensor key = norm_heads(layer.key, layer.key_norm, sizes_.key_statistics, pass, keeps);
  take_rotary(layer, pass);
  layer.rotated_query = turn_halves(tape_, sizes_.query);
  layer.rotated_key = turn_halves(tape_, sizes_.key);
  if (!graph_saves(pass)) {
    tape_.free(layer.cosines, layer.sines);
  }
  tape_.free(query, key);
}

void EagerLayer::rotate_halves_backward(LayerTensors& layer, TapeTensor& query, TapeTensor& key) {
  // Gradients of a ring's keys are part of a tensor that their values' share.
  TapeTensor of_key = sizes_.cp > 1 ? tape_.make(sizes_.key) : std::exchange(key, {});
  turn_back(tape_, of_key, nullptr, nullptr);
  turn_back(tape_, query, &layer.sines, &layer.cosines);
  norm_heads_backward(of_key, layer.key, layer.key_norm, sizes_.key_statistics);
  norm_heads_backward(query, layer.query, layer.query_norm, sizes_.query_statistics);
  layer.rotated_key = of_key;
  layer.rotated_query = std::exchange(query, {});
}

}  // namespace shardplan::torchtitan
