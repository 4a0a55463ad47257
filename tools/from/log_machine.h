// What the log of a run says of the machine that it ran on: names of GPUs, and how many ranks there
// were. Each with its line, so that an answer can say where it is from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/read/text_file.h"
#include "tools/from/log_text.h"

namespace shardplan {

// Words behind "NVIDIA ", of which the first may name a GPU: "H100 80GB HBM3 with 79.10GiB memory".
struct PrintedGpu {
  std::string words;
  std::int64_t line = 0;
};

// How many ranks a line tells of.
struct PrintedRanks {
  std::int64_t num = 0;       // 0: no line does
  std::int64_t per_node = 0;  // 0: not told
  std::int64_t line = 0;
  std::string source;  // what tells: "world size", "device mesh"
};

struct LogMachine {
  std::vector<PrintedGpu> gpus;          // in order, each wording once
  std::optional<PrintedBytes> capacity;  // of the first message of PyTorch's that has one
  std::int64_t capacity_line = 0;
  PrintedRanks ranks;
  std::int64_t highest_rank = -1;  // of a prefix like [rank3]: or [default3]:, -1: there is none
};

LogMachine read_log_machine(TextFile& log);

}  // namespace shardplan
