#include "estimator/parameters.h"
