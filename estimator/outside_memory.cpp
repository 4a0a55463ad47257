#include "estimator/outside_memory.h"
