// The linear layers of a decoder layer by the names that Hugging Face's classes give them, and the
// targets of peft's adapters, which fit these names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/read/case_tuning.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

struct LinearModule {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  // One module may stand for several: q, k and v of one projection.
  std::vector<LinearLayer> places;
};
// The linear modules of the layer with that index. Sources: transformers 5.17
// models/<family>/modeling_<family>.py.
std::vector<LinearModule> linear_modules(const ModelSpec& model, std::int64_t layer);

// The targets of a run that names none (peft 0.21 utils/constants.py
// TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING; Llama's where it has no row).
std::vector<std::string> default_targets(const ModelSpec& model);

struct FittedTargets {
  Targets targets;
  std::vector<std::string> unfit;  // of the names: those that no module ends with
  std::string in_part;             // the first place of which some modules fit and others do not
};
// Names that modules' paths are or end with, as words (peft 0.21 tuners/tuners_utils.py
// check_target_module_exists). Names of an FFN's layers are the experts' as well, where a class has
// experts.
FittedTargets fit_names(const ModelSpec& model, const std::vector<std::string>& names);
// A regular expression of whole paths. InputError where it is none.
FittedTargets fit_pattern(const ModelSpec& model, const std::string& pattern,
                          const std::string& where);

}  // namespace shardplan
