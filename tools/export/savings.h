// What a switch of an exported plan saves: the prediction without it beside the plan's own.
#pragma once

#include <string>

#include "tools/export/export_request.h"

namespace shardplan {

// "without: +3.20 GiB, step +4.1 %" of the fullest GPU and of the step; "" where nothing changes or
// the other plan is not valid.
std::string cost_without(const ExportRequest& request, const Job& other_job,
                         const Plan& other_plan);

// The same where a switch of the framework has this value.
std::string cost_with_option(const ExportRequest& request, const std::string& option,
                             const std::string& word);

// "assumed" of a field of the plan, or a switch, that nobody stated; "" of the others.
std::string assumed_mark(const ExportRequest& request, const std::string& name);

// "assumed; without: +3.20 GiB": those of the parts that are not empty.
std::string joined_comment(const std::string& first, const std::string& second);

}  // namespace shardplan
