#include "data/arguments/megatron_tower.h"

#include <string>

namespace shardplan {

// The classes of mcore-bridge 1.6.5 (model/mm_gpts) that load a tower which is known, and run it in
// every microbatch, on a small picture of zeros where there is none.
void read_megatron_tower(const RunArguments& arguments, RunReading& run) {
  const TowerKind kind = run.job.model.tower.kind;
  if (kind == TowerKind::kNone || arguments.text_or("--language-model-only", "false") == "true") {
    return;
  }
  if (kind != TowerKind::kQwen && kind != TowerKind::kLlama4) {
    refuse(run, "model " + run.job.model.name +
                    ": mcore-bridge has no class for the tower beside its text model");
    return;
  }
  for (const char* const name : {"--freeze-vit", "--freeze-aligner"}) {
    if (arguments.text_or(name, "true") == "false") {
      refuse(run, std::string(name) +
                      " false: a tower for pictures that is trained; a frozen one is described");
    }
  }
  run.job.profile.vision_tower = TowerUse::kFrozen;
  run.notes.push_back(
      "Megatron-SWIFT loads " + run.job.model.name +
      " with its tower for pictures, which is counted on the first stage as it lies there; batches "
      "are taken to be text alone; --set language-model-only=true leaves it out");
}

}  // namespace shardplan
