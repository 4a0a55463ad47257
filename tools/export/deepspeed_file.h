// DeepSpeed's configuration.
#pragma once

#include "tools/export/export_request.h"

namespace shardplan {

ExportedFile deepspeed_file_of(const ExportRequest& request);  // deepspeed.json

}  // namespace shardplan
