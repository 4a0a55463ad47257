#include "estimator/schedule.h"
