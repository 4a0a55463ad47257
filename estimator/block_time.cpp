#include "estimator/block_time.h"
