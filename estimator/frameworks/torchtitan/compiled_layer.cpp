#include "estimator/frameworks/torchtitan/compiled_layer.h"

#include "estimator/frameworks/torchtitan/qwen3.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;     // fp32 for bf16
constexpr std::int64_t kKeyValue = 2;  // keys and values in one tensor
constexpr std::int64_t kHalf = 2;      // half the queries from the second round of a ring on

bool saves_all(LayerPass pass) {
  return pass == LayerPass::kSaves;
}
bool saves_nothing(LayerPass pass) {
  return pass == LayerPass::kSavesNothing;
}

}  // namespace

TapeTensor CompiledLayer::gather() {
  TapeTensor gathered = tape_.make(sizes_.gathered);
  if (sizes_.joins_batch) {
    tape_.replace(gathered, sizes_.gathered);
  }
  return gathered;
}

// Reduce-scatter of partial sums, copied together first.
TapeTensor CompiledLayer::reduce(TapeTensor& partial) {
  TapeTensor input = tape_.make(sizes_.gathered);
  tape_.free(partial);
  const TapeTensor reduced = tape_.make(sizes_.sequence);
  tape_.free(input);
  return reduced;
}

TapeTensor CompiledLayer::product(LayerTensors& layer, Weight weight, std::int64_t bytes,
                                  LayerPass pass) {
  TapeTensor& cast = layer.casts[static_cast<std::size_t>(weight)].weight;
  cast = tape_.make(sizes_.autocast ? sizes_.weight(weight) : 0);
  const TapeTensor output = tape_.make_product(bytes);
  if (!saves_all(pass)) {
    tape_.free(cast);
  }
  return output;
}

void CompiledLayer::project(LayerTensors& layer, LayerPass pass) {
  layer.norm_statistics = tape_.make(saves_all(pass) ? sizes_.statistics : 0);
  layer.norm = tape_.make(sizes_.sequence);
  if (sizes_.tensor_parallel) {
    layer.gathered = gather();
    tape_.free(layer.norm);
  }
  layer.query = product(layer, Weight::kQuery, sizes_.query, pass);
  layer.key = product(layer, Weight::kKey, sizes_.key, pass);
  layer.value = product(layer, Weight::kValue, sizes_.key, pass);
}

// Norm and rotation of Qwen 3's heads are one kernel, whose outputs are tensors of their own.
void CompiledLayer::rotate_halves(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (saves_all(pass)) {
    save_rotary(tape_, sizes_, layer);
    layer.query_norm.statistics = tape_.make(sizes_.query_statistics);
    layer.rotated_query = tape_.make(sizes_.query);
    layer.key_norm.statistics = tape_.make(sizes_.key_statistics);
    layer.rotated_key = tape_.make(sizes_.key);
    return;
  }
  const bool keeps_norm = sizes_.tensor_parallel || sizes_.cp > 1;
  TapeTensor query =
      keeps_norm ? tape_.make(sizes_.query) : tape_.write_over(layer.norm, sizes_.query);
  TapeTensor& held = saves_nothing(pass) ? layer.query : left.norm;
  tape_.free(held);
  held = query;
  if (sizes_.cp == 1 || saves_nothing(pass)) {  // else over the product
    const TapeTensor key = tape_.make(sizes_.key);
    tape_.free(layer.key);
    layer.key = key;
  }
}

// Rotated queries and keys lie where the products wrote theirs; where a product is saved, in the
// buffer of the norm.
void CompiledLayer::rotate(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (sizes_.norms_query_key) {
    rotate_halves(layer, pass, left);
    return;
  }
  if (saves_nothing(pass)) {
    tape_.free(layer.norm);
  } else if (!saves_all(pass)) {
    left.norm = sizes_.tensor_parallel ? TapeTensor{} : std::exchange(layer.norm, {});
  }
  TapeTensor query = tape_.make(kWiden * sizes_.query);
  TapeTensor key = tape_.make(kWiden * sizes_.key);
  layer.angles = tape_.make(sizes_.cp > 1 ? sizes_.angles : 0);
  left.turned = tape_.make(kWiden * sizes_.query);
  tape_.free(query);
  TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
  if (!saves_all(pass)) {
    tape_.free(layer.angles);
  }
  tape_.free(key);
  if (!saves_all(pass) && !saves_nothing(pass) && left.norm.id == 0) {
    left.norm = tape_.make(sizes_.query);
  }
  if (sizes_.cp == 1 || saves_all(pass)) {
    tape_.free(left.turned);
  }
  tape_.free(turned_key);
}

void CompiledLayer::attend(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (sizes_.cp > 1) {
    attend_ring(layer, pass, left);
    return;
  }
  layer.output = tape_.make(sizes_.query);
  layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
  if (saves_nothing(pass)) {
    tape_.free(layer.key, layer.value, layer.log_sum_exp);
  } else if (!saves_all(pass)) {
    tape_.free(layer.key);
  }
}

// Every round's output, merged by one kernel; keys and values of all ranks stay for backward.
void CompiledLayer::attend_ring(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (!saves_nothing(pass)) {
    const TapeTensor value = tape_.make(sizes_.key);
    tape_.free(layer.value);
    layer.value = value;
  }
  TapeTensor joined = tape_.make(kKeyValue * sizes_.key);
  layer.gathered_key_values = tape_.make(sizes_.cp * kKeyValue * sizes_.key);
  tape_.free(joined);
  left.stream = tape_.make(sizes_.query);
  TapeTensor merged_lse = tape_.make(sizes_.log_sum_exp);
  TapeTensor half = tape_.make(saves_all(pass) ? 0 : sizes_.query / kHalf);
  tape_.free(left.turned);
  if (saves_nothing(pass)) {
    tape_.free(layer.key, layer.value);
  }
  for (std::int64_t round = 1; round < sizes_.cp; ++round) {
    TapeTensor output = tape_.make(sizes_.query / kHalf);
    TapeTensor log_sum_exp = tape_.make(sizes_.log_sum_exp / kHalf);
    if (round + 1 == sizes_.cp) {
      tape_.free(half);
    }
    const TapeTensor next_lse = tape_.make(saves_nothing(pass) ? 0 : sizes_.log_sum_exp);
    if (round + 1 == sizes_.cp && !saves_nothing(pass)) {
      layer.log_sum_exp = next_lse;
    }
    if (round + 1 < sizes_.cp) {
      tape_.free(merged_lse);
      merged_lse = next_lse;
    } else if (saves_all(pass)) {
      layer.output = tape_.make(sizes_.query);
      layer.output_copy = tape_.make(sizes_.query);
    } else if (!saves_nothing(pass)) {
      layer.output = tape_.write_over(left.norm, sizes_.query);
      left.norm = tape_.make(sizes_.query);
    }
    if (round + 1 == sizes_.cp) {
      tape_.free(merged_lse);
      if (saves_nothing(pass)) {
        tape_.free(layer.gathered_key_values);
      }
    }
    tape_.free(output, log_sum_exp);
  }
  if (sizes_.norms_query_key && !saves_all(pass)) {
    tape_.free(left.norm);
    left.norm = std::exchange(layer.norm, {});
  }
}

// Output of wo: saved, or written over what is used up.
void CompiledLayer::project_output(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  TapeTensor& cast = layer.casts[static_cast<std::size_t>(Weight::kOutput)].weight;
  cast = tape_.make(sizes_.autocast ? sizes_.weight(Weight::kOutput) : 0);
  if (sizes_.tensor_parallel) {
    TapeTensor partial = tape_.make_product(sizes_.gathered);
    tape_.free(left.stream);
    if (!saves_all(pass)) {
      tape_.free(layer.gathered);
    }
    left.stream = reduce(partial);
  } else if (saves_nothing(pass)) {
    tape_.free(left.stream);
    left.stream = tape_.write_over(layer.query, sizes_.sequence);
  } else if (left.stream.id != 0) {
    left.stream = tape_.write_over(left.stream, sizes_.sequence);
  } else if (saves_all(pass)) {
    left.stream = tape_.make_product(sizes_.sequence);
  } else {
    left.stream = tape_.write_over(left.norm, sizes_.sequence);
  }
  if (saves_nothing(pass)) {
    tape_.free(layer.query);
  }
  if (saves_all(pass)) {
    layer.after_attention = std::exchange(left.stream, {});
  } else {
    tape_.free(cast);
  }
}

TapeTensor CompiledLayer::feed_forward(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  layer.ffn_statistics = tape_.make(saves_all(pass) ? sizes_.statistics : 0);
  layer.ffn_norm = left.norm.id != 0     ? tape_.write_over(left.norm, sizes_.sequence)
                   : saves_nothing(pass) ? tape_.write_over(layer.output, sizes_.sequence)
                                         : tape_.make(sizes_.sequence);
  if (sizes_.tensor_parallel) {
    layer.ffn_gathered = gather();
    tape_.free(layer.ffn_norm);
  }
  layer.gate = product(layer, Weight::kGate, sizes_.ffn, pass);
  layer.up = product(layer, Weight::kUp, sizes_.ffn, pass);
  if (!saves_all(pass)) {
    tape_.free(layer.ffn_norm, layer.ffn_gathered);
    if (saves_nothing(pass)) {
      std::swap(layer.product, layer.gate);  // written over the gate
    } else {
      std::swap(layer.product, layer.up);
    }
    tape_.free(layer.up);
  } else {
    ProductCasts& casts = layer.casts[static_cast<std::size_t>(Weight::kDown)];
    casts.weight = tape_.make(sizes_.autocast ? sizes_.weight(Weight::kDown) : 0);
    layer.product = tape_.make(sizes_.ffn);
  }
  TapeTensor down = tape_.make_product(sizes_.gathered);
  if (!saves_all(pass)) {
    tape_.free(layer.product);
  }
  if (sizes_.tensor_parallel) {
    down = reduce(down);
  }
  if (!sizes_.tensor_parallel && !sizes_.autocast && saves_all(pass)) {
    return down;  // the sum is written over it
  }
  if (sizes_.tensor_parallel || sizes_.autocast) {
    const TapeTensor output = tape_.make(sizes_.residual);
    if (sizes_.tensor_parallel && pass == LayerPass::kSavesOps) {
      layer.reduced_output = std::exchange(left.stream, {});
    }
    tape_.free(left.stream, down);
    return output;
  }
  tape_.free(down);
  return std::exchange(left.stream, {});
}

TapeTensor CompiledLayer::forward(LayerTensors& layer, LayerPass pass) {
  Leftovers left;
  project(layer, pass);
  rotate(layer, pass, left);
  attend(layer, pass, left);
  project_output(layer, pass, left);
  return feed_forward(layer, pass, left);
}

}  // namespace shardplan::torchtitan
