package lockgrpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgrpc"
	"github.com/golocker/locker/lockertest"
)

// service plays calls that lose their locks.
type service struct {
	pb.UnimplementedTestServiceServer
	t     *testing.T
	store *lockertest.Store
}

func (s *service) lose(ctx context.Context) {
	if err := s.store.Lose(ctx, key); err != nil {
		s.t.Error(err)
	}
}

func (s *service) UnaryCall(ctx context.Context, req *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if req.GetFillUsername() {
		s.lose(ctx)
		<-ctx.Done()
	}
	return &pb.SimpleResponse{}, nil
}

// FullDuplexCall loses its lock while it waits for the second message of the client.
func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
		return err
	}
	go s.lose(stream.Context())
	_, err := stream.Recv()
	if !errors.Is(err, locker.ErrLost) {
		s.t.Errorf("the handler received: %v", err)
	}
	return err
}

// byCall is the key of a request, or of the metadata of a stream.
func byCall(ctx context.Context, _ string, req any) string {
	if r, ok := req.(*pb.SimpleRequest); ok {
		return string(r.GetPayload().GetBody())
	}
	if keys := metadata.ValueFromIncomingContext(ctx, "key"); len(keys) > 0 {
		return keys[0]
	}
	return ""
}

// What a client of a real server sees.
func TestClient(t *testing.T) {
	w := &world{T: t, store: lockertest.NewStore()}
	w.locker = w.client()
	s := grpc.NewServer(
		grpc.ChainUnaryInterceptor(lockgrpc.UnaryServerInterceptor(w.locker, byCall)),
		grpc.ChainStreamInterceptor(lockgrpc.StreamServerInterceptor(w.locker, byCall)))
	pb.RegisterTestServiceServer(s, &service{t: t, store: w.store})
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- s.Serve(at) }()
	conn, err := grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Close()
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	client, order := pb.NewTestServiceClient(conn), &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte(key)}}

	if _, err := client.UnaryCall(t.Context(), order); err != nil {
		t.Error(err)
	}
	lease, err := w.client().TryLock(t.Context(), key, locker.NoRenewal(), locker.TTL(locker.MaxTTL))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
		t.Errorf("a call without a key: %v", err)
	}
	_, err = client.UnaryCall(t.Context(), order)
	if delay := w.delay(err); status.Code(err) != codes.Aborted || delay <= time.Hour || delay > locker.MaxTTL {
		t.Errorf("held: %v, try again after %v", err, delay)
	}
	w.unlock(lease)
	order.FillUsername = true // it loses the lock
	_, err = client.UnaryCall(t.Context(), order)
	w.refused(err, codes.Aborted, 0)

	stream, err := client.FullDuplexCall(metadata.AppendToOutgoingContext(t.Context(), "key", key))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("the message before the loss: %v", err)
	}
	_, err = stream.Recv()
	if errors.Is(err, io.EOF) {
		t.Error("the stream has ended well")
	}
	w.refused(err, codes.Aborted, 0)
	w.free()
}
