// How nanotron updates parameters: what its optimizer and its gradient buffer move.
#pragma once

#include "estimator/time/update_times.h"

namespace shardplan::nanotron {

extern const UpdateTimes kUpdate;

}  // namespace shardplan::nanotron
