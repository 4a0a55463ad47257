// accelerate's file: which processes train, and how FSDP divides the model.
#pragma once

#include "tools/export/export_request.h"

namespace shardplan {

ExportedFile accelerate_file_of(const ExportRequest& request);  // accelerate.yaml

}  // namespace shardplan
