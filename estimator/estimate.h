// The estimator's answers: why_invalid, estimate_memory, estimate_step_time. Pure functions: no
// I/O, no globals; valid plans only (else logic_error).
#pragma once

#include "estimator/answer/estimate_memory.h"
#include "estimator/answer/step_time.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/plan/capacity.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"
