// The JSON of bench_training: the cases of its own table, and its result lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/training_table.h"

namespace shardplan {

// bf16 with fp32 states, sequences of 8192. On one GPU 16 layers of the Llama-3-8B shape, on 2 and
// 4 the same, on 8 all 32: data parallel, then every dimension alone at 2, 4 and 8 with data
// parallelism over what is left, and experts as Mixtral has them. Nothing for other numbers of
// GPUs. `gpu`: name or file.
std::vector<TrainingCase> training_cases(std::int64_t num_gpus, const std::string& gpu);

// The case line with `measured`, with a newline: can be read again as a case.
std::string training_json(const TrainingResult& result, const TrainingRun& run);
// What stands in such a line; nothing where the case was not measured by bench_training.
std::optional<TrainingResult> training_result(const std::string& line, const std::string& place,
                                              const Library& library);

}  // namespace shardplan
