// Rows that every screen has: the verdict with its numbers, the job, the network, what the evidence
// says.
#pragma once

#include <string>

#include "tools/accuracy/evidence.h"
#include "tools/commands/verdict.h"
#include "tools/screen/screen.h"

namespace shardplan {

// "45.72 of 139.80 GiB on the fullest GPU (32.7 %), 94.07 GiB left".
std::string memory_words(const Job& job, const MemoryEstimate& memory);

// "7.281 s a step, 9,001 tokens/s per GPU, MFU 46.8 %".
std::string speed_words(const StepTime& time);

// Model, cluster, framework, batch.
std::string job_rows(const Screen& screen, const Job& job);

// What lies between GPUs, and whether anybody said so.
std::string network_words(const ClusterSpec& cluster);

// What the step is made of: the largest parts.
std::string step_words(const StepTime& time);

// The nearest measured runs, how far off the estimate was for them, and what no run covers.
std::string evidence_words(const Evidence& evidence);

}  // namespace shardplan
