// Whether exported files say what was asked: they are read as any run of a user's is, and must get
// the same prediction.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Of the options of the command that asked those that no file of a framework says: the cluster and
// the data.
Options options_beside_files(const Options& options);

// `beside`: options that stand beside the files. `file`: the exported one that starts the run.
// `facts`: KEY=VALUE of the framework that no file of it says. InputError, which names the setting
// or the fields that the framework cannot express, where the two differ.
void require_read_back(const ExportRequest& request, const Options& beside, const std::string& file,
                       const std::vector<std::string>& facts);

// The question that the files ask.
Question question_of_files(const Options& beside, const Library& library, const std::string& file,
                           const std::vector<std::string>& facts);

// Equal for equal predictions, to the byte.
std::string prediction_text(const Prediction& prediction);

}  // namespace shardplan
