#include "estimator/allocator_replay.h"
