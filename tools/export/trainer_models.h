// Models that transformers' Trainer cannot be given by name.
#pragma once

#include <string>

#include "tools/export/export_request.h"

namespace shardplan {

// InputError where transformers has no class that train.py's AutoModelForCausalLM would find for
// the model's config.json.
void refuse_model_without_class(const ExportRequest& request);

}  // namespace shardplan
