#include "data/arguments/trainer_offload.h"

#include <algorithm>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr const char* kOffloading = "activation_offloading";

// axolotl 067b021 utils/schemas/validation.py check_gradient_checkpointing_w_offload.
bool says_offload(const TrainerFile& trainer) {
  const std::string word = trainer.arguments.text_or("gradient_checkpointing", "false");
  return trainer.defaults.project == TrainerProject::kAxolotl &&
         (word == "offload" || word == "offload_disk");
}

// "true", "legacy", "disk", "hidden_states" or "false".
std::string offloading_word(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  if (says_offload(trainer)) {
    return arguments.text_or("gradient_checkpointing", "") == "offload" ? "true" : "disk";
  }
  return is_on(arguments, kOffloading) ? "true" : arguments.text_or(kOffloading, "false");
}

// core/trainers/mixins/activation_checkpointing.py: all words but legacy have TRL's stream of
// copies, disk as well; a model with adapters has a manager that is not told its weights. Layers
// run again, by the model's own checkpoints under adapters, else by checkpoint_wrapper
// (loaders/model.py).
void read_of_axolotl(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const std::string word = offloading_word(trainer);
  if (word == "hidden_states") {
    refuse(run, std::string(kOffloading) +
                    " hidden_states: checkpoints of axolotl's own that bring inputs of layers back "
                    "ahead; true, TRL's, is described");
    return;
  }
  if (word == "disk") {
    run.notes.push_back(trainer.file + ": " + kOffloading +
                        ": found disk, took the host's memory, where axolotl puts them for that "
                        "word, too");
  }
  want(run, "activation_offload", word == "legacy" ? "one_stream" : "streams", library);
  if (trains_adapters(trainer)) {
    want(run, "offload_spares_weights", "false", library);
  } else {
    want(run, "reentrant_checkpoint", "false", library);
  }
}

}  // namespace

bool offloads_activations(const TrainerFile& trainer) {
  const std::string word = offloading_word(trainer);
  return (word != "false" && word != "none" && word != "null" && word != "0") ||
         is_on(trainer.arguments, "use_unsloth_gc");
}

void read_activation_offload(const TrainerFile& trainer, RunReading& run, const Library& library) {
  if (!offloads_activations(trainer)) {
    return;
  }
  if (is_on(trainer.arguments, "use_unsloth_gc")) {
    want(run, "activation_offload", "layer_inputs", library);
    return;
  }
  if (trainer.defaults.project == TrainerProject::kAxolotl) {
    return read_of_axolotl(trainer, run, library);
  }
  if (trainer.defaults.project != TrainerProject::kTrl) {
    refuse(run, shown_setting(trainer.arguments, kOffloading) +
                    ": saved tensors on the host are described for TRL and axolotl");
  }
}

// monkeypatch/tiled_mlp/patch.py: tiles of 32,768 tokens where nobody says how many.
void read_tiles(const TrainerFile& trainer, RunReading& run, const Library& library) {
  constexpr std::int64_t kTokens = 32768;
  constexpr std::int64_t kMostTiles = 65536;
  const RunArguments& arguments = trainer.arguments;
  if (!is_on(arguments, "tiled_mlp")) {
    return;
  }
  if (arguments.text_or("tiled_mlp_use_original_mlp", "true") == "false") {
    refuse(run,
           "tiled_mlp_use_original_mlp false: a compiled FFN; the model's own, by tiles, is "
           "described");
  }
  const std::int64_t tiles = arguments.integer_or(
      "tiled_mlp_num_shards", std::max<std::int64_t>(1, div_ceil(run.job.sequence_length, kTokens)),
      1, kMostTiles);
  want(run, "ffn_tiles", std::to_string(tiles), library);
}

}  // namespace shardplan
