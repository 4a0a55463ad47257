#include "estimator/step_time.h"
