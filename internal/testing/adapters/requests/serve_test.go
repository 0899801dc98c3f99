package requests

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgrpc"
	"github.com/golocker/locker/adapters/lockhttp"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/redistest"
)

// The test binary is also the program of the instances.
func TestMain(m *testing.M) {
	instance.Main(func(me *instance.Self, args []string) error { return serve(me, args[0], args[1]) })
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

const (
	key = "orders:42"

	// ttl is for how long a lock stays after a crash. A holder that stands still for two seconds keeps its lock.
	ttl = 5 * time.Second

	// patience is the limit of requests that wait.
	patience = time.Minute
)

// What a request makes a handler do.
const (
	quick = "quick" // return
	step  = "step"  // say "runs" with the token, and return when the test says so
	hold  = "hold"  // say "runs", wait for the end of the context, say "stops", and return
)

// worker is the handlers of an instance.
type worker struct{ *instance.Self }

func (w worker) work(ctx context.Context, what string) {
	lease, _ := locker.LeaseFrom(ctx)
	switch what {
	case step:
		w.Ask("runs %d", lease.Fence())
	case hold:
		w.Say("runs %d", lease.Fence())
		<-ctx.Done()
		w.Say("stops")
	}
}

// serve is an instance: it says its address, and answers requests by HTTP or gRPC.
func serve(me *instance.Self, kind, url string) error {
	opened, err := config.Open(context.Background(), url)
	if err != nil {
		return err
	}
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	me.Say("serves at %s", at.Addr())
	l, w := locker.Wrap(opened, locker.Defaults(locker.TTL(ttl))), worker{me}
	if kind == "gRPC" {
		return w.grpc(at, l)
	}
	return w.http(at, l)
}

func (w worker) http(at net.Listener, l locker.Locker) error {
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { w.work(r.Context(), r.PathValue("what")) })
	byKey := func(*http.Request) string { return key }
	mux := http.NewServeMux()
	mux.Handle("POST /now/{what}", lockhttp.New(l, byKey)(handler))
	mux.Handle("POST /wait/{what}", lockhttp.New(l, byKey, lockhttp.Wait(patience))(handler))
	return http.Serve(at, mux)
}

// service has two methods: CacheableUnaryCall waits for the lock.
type service struct {
	pb.UnimplementedTestServiceServer
	worker
}

func (s service) UnaryCall(ctx context.Context, req *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.work(ctx, string(req.GetPayload().GetBody()))
	return &pb.SimpleResponse{}, nil
}

func (s service) CacheableUnaryCall(ctx context.Context, req *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return s.UnaryCall(ctx, req)
}

func (w worker) grpc(at net.Listener, l locker.Locker) error {
	of := func(name string) lockgrpc.KeyFunc {
		return func(_ context.Context, method string, _ any) string {
			if strings.HasSuffix(method, "/"+name) {
				return key
			}
			return ""
		}
	}
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(
		lockgrpc.UnaryServerInterceptor(l, of("UnaryCall")),
		lockgrpc.UnaryServerInterceptor(l, of("CacheableUnaryCall"), lockgrpc.Wait(patience))))
	pb.RegisterTestServiceServer(s, service{worker: w})
	return s.Serve(at)
}
