// Out-of-memory messages in the log of a training run.
//
// The words are those of PyTorch (c10/cuda/CUDACachingAllocator.cpp,
// DeviceCachingAllocator::malloc; releases 1.x to 2.11 differ in order and punctuation): "Tried to
// allocate" is followed by the size of the segment that was asked of the driver, not of the tensor;
// sizes have two decimals (format_size). Failures outside that allocator (NCCL, cuBLAS, cuDNN)
// carry no size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/text_file.h"
#include "tools/from/log_text.h"

namespace shardplan {

// What the calls of a Python traceback were doing.
enum class StepPart { kUnknown, kForward, kLoss, kBackward, kOptimizer };

struct OomEvent {
  std::int64_t line = 0;                  // of the log, from 1
  std::int64_t repeats = 1;               // the same message again, as launchers do
  std::optional<std::int64_t> rank;       // from a prefix like [rank3]:
  std::optional<std::int64_t> gpu;        // index as the process sees it
  std::optional<std::int64_t> last_step;  // the last step that the log reports before it
  StepPart part = StepPart::kUnknown;     // as the traceback above it tells
  std::optional<PrintedBytes> tried;      // absent: a failure outside the allocator
  std::string outside;                    // which: "NCCL", "cuBLAS", ...
  std::optional<PrintedBytes> capacity;
  std::optional<PrintedBytes> free;
  std::optional<PrintedBytes> process;    // all that this process holds, with context and NCCL
  std::int64_t num_others = 0;            // other processes on this GPU
  std::int64_t others_bytes = 0;          // that they hold
  std::optional<PrintedBytes> allowed;    // to PyTorch, by set_per_process_memory_fraction
  std::optional<PrintedBytes> allocated;  // by PyTorch
  std::optional<PrintedBytes> reserved;   // by PyTorch: allocated and cached

  // Of the GPU that failed, what other processes leave, and what this one is allowed.
  std::optional<std::int64_t> usable_bytes() const;
};

struct OomLog {
  std::vector<OomEvent> events;      // in order; copies of one are counted, not repeated
  std::int64_t host_oom_line = 0;    // the first that tells of a process killed, or refused memory,
                                     // by the host; 0: none
  std::int64_t wrong_size_line = 0;  // the first that tells of more than 1 EB asked for; 0: none
};

OomLog read_oom_log(TextFile& log);

}  // namespace shardplan
